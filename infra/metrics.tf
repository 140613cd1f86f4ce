# Log metrics of the functions' own figures, and what is not kept in the log.

locals {
  log_lines = {
    settled = "jsonPayload.message:\"settled: \""
    sweep   = "resource.labels.service_name=\"reconcile\" AND jsonPayload.message=\"reconcile sweep\""
    tick    = "resource.labels.service_name=\"relay\" AND jsonPayload.message=\"relay tick\""
  }

  # Figures that relay and reconcile log at every run, for the dashboard.
  log_values = {
    open_dead_letters         = { line = "sweep", field = "jsonPayload.sweep.open_dead_letters", unit = "1" }
    outbox_oldest_age         = { line = "tick", field = "jsonPayload.tick.oldest_age", unit = "s" }
    outbox_unclaimed          = { line = "tick", field = "jsonPayload.tick.unclaimed", unit = "1" }
    outbox_unpublished        = { line = "tick", field = "jsonPayload.tick.unpublished", unit = "1" }
    unknown_effect_oldest_age = { line = "sweep", field = "jsonPayload.sweep.oldest_unknown_age", unit = "s" }
    unknown_effects           = { line = "sweep", field = "jsonPayload.sweep.unknown_effects", unit = "1" }
  }

  # How many lines say so, for the alerts: a percentile of a distribution is an estimate, a count is exact.
  log_counts = {
    settled               = { line = "settled", that = "" }
    settled_for_review    = { line = "settled", that = "AND jsonPayload.message=~\"settled: (exhausted|unresolved)\"" }
    sweeps_with_letters   = { line = "sweep", that = "AND jsonPayload.sweep.open_dead_letters>0" }
    sweeps_with_unknowns  = { line = "sweep", that = "AND jsonPayload.sweep.oldest_unknown_age>3600" }
    ticks                 = { line = "tick", that = "" }
    ticks_with_late_rows  = { line = "tick", that = "AND jsonPayload.tick.oldest_age>60" }
    ticks_with_stuck_rows = { line = "tick", that = "AND jsonPayload.tick.oldest_age>600" }
  }
}

resource "google_logging_metric" "value" {
  for_each = local.log_values

  name            = "echoproof/${each.key}"
  description     = "${each.value.field}, at each ${each.value.line}."
  filter          = "resource.type=\"cloud_run_revision\" AND ${local.log_lines[each.value.line]}"
  value_extractor = "EXTRACT(${each.value.field})"
  depends_on      = [google_project_service.this]

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "DISTRIBUTION"
    unit        = each.value.unit
  }

  bucket_options {
    exponential_buckets {
      num_finite_buckets = 40
      growth_factor      = 1.6
      scale              = 1
    }
  }
}

resource "google_logging_metric" "count" {
  for_each = local.log_counts

  name        = "echoproof/${each.key}"
  description = "Log lines: ${each.value.line} ${each.value.that}"
  filter      = trimspace("resource.type=\"cloud_run_revision\" AND ${local.log_lines[each.value.line]} ${each.value.that}")
  depends_on  = [google_project_service.this]

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"
    unit        = "1"
  }
}

# The project's own sink, taken over: a line for each request that went well is most of the log and tells nothing that
# the request metrics do not. The provider updates this sink, and leaves it there when this is destroyed.
resource "google_logging_project_sink" "default" {
  name        = "_Default"
  destination = "logging.googleapis.com/projects/${var.project}/locations/global/buckets/_Default"
  filter = join(" AND ", [for log in setproduct(["cloudaudit", "externalaudit"], ["activity", "system_event", "access_transparency"]) :
    "NOT LOG_ID(\"${log[0]}.googleapis.com/${log[1]}\")"
  ])
  unique_writer_identity = true
  depends_on             = [google_project_service.this]

  exclusions {
    name        = "echoproof-requests-that-went-well"
    description = "Request logs of Cloud Run with a 2xx answer."
    filter      = "LOG_ID(\"run.googleapis.com/requests\") AND httpRequest.status>=200 AND httpRequest.status<300"
  }
}
