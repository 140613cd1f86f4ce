# What is watched: log metrics from relay's and reconcile's own figures, alerts with what to do, one dashboard.

locals {
  runbook = "See docs/runbook.md in the repository, section"

  # Figures that relay and reconcile log at every run: metric → filter and field.
  log_values = {
    outbox_oldest_age = { function = "relay", field = "jsonPayload.tick.oldest_age", unit = "s" }
    outbox_unclaimed  = { function = "relay", field = "jsonPayload.tick.unclaimed", unit = "1" }
    outbox_unpublished = {
      function = "relay", field = "jsonPayload.tick.unpublished", unit = "1"
    }
    unknown_effects           = { function = "reconcile", field = "jsonPayload.sweep.unknown_effects", unit = "1" }
    unknown_effect_oldest_age = { function = "reconcile", field = "jsonPayload.sweep.oldest_unknown_age", unit = "s" }
    open_dead_letters         = { function = "reconcile", field = "jsonPayload.sweep.open_dead_letters", unit = "1" }
  }
  log_messages = { relay = "relay tick", reconcile = "reconcile sweep" }

  # Alerts on a metric: filter, how it is aligned, threshold, for how long, and the runbook's section.
  alerts = merge(
    {
      outbox-age = {
        title     = "Dispatches wait too long"
        filter    = "metric.type = \"logging.googleapis.com/user/echoproof/outbox_oldest_age\""
        aligner   = "ALIGN_PERCENTILE_99"
        threshold = 600
        duration  = "300s"
      }
      unknown-effects = {
        title     = "An effect's outcome has been unknown for an hour"
        filter    = "metric.type = \"logging.googleapis.com/user/echoproof/unknown_effect_oldest_age\""
        aligner   = "ALIGN_PERCENTILE_99"
        threshold = 3600
        duration  = "0s"
      }
      dead-letters = {
        title     = "Something needs a decision"
        filter    = "metric.type = \"logging.googleapis.com/user/echoproof/open_dead_letters\""
        aligner   = "ALIGN_PERCENTILE_99"
        threshold = 0
        duration  = "0s"
      }
      server-errors = {
        title     = "Functions answer with errors"
        filter    = "resource.type = \"cloud_run_revision\" AND metric.type = \"run.googleapis.com/request_count\" AND metric.labels.response_code_class = \"5xx\""
        aligner   = "ALIGN_RATE"
        threshold = 0.1 # a second, over all functions
        duration  = "600s"
      }
      instances = {
        title     = "A function is at its maximum of instances"
        filter    = "resource.type = \"cloud_run_revision\" AND metric.type = \"run.googleapis.com/container/instance_count\" AND metric.labels.state = \"active\""
        aligner   = "ALIGN_MAX"
        threshold = max([for size in values(local.sizes) : size.max_instances]...) - 0.5
        duration  = "900s"
      }
      database-connections = {
        title     = "The database is short of connections"
        filter    = "resource.type = \"cloudsql_database\" AND metric.type = \"cloudsql.googleapis.com/database/postgresql/num_backends\""
        aligner   = "ALIGN_MAX"
        threshold = floor(var.database.max_connections * 0.8)
        duration  = "300s"
      }
      database-cpu = {
        title     = "The database is busy"
        filter    = "resource.type = \"cloudsql_database\" AND metric.type = \"cloudsql.googleapis.com/database/cpu/utilization\""
        aligner   = "ALIGN_MEAN"
        threshold = 0.85
        duration  = "900s"
      }
      database-disk = {
        title     = "The database's disk is filling"
        filter    = "resource.type = \"cloudsql_database\" AND metric.type = \"cloudsql.googleapis.com/database/disk/utilization\""
        aligner   = "ALIGN_MEAN"
        threshold = 0.85
        duration  = "900s"
      }
      tasks-depth = {
        title     = "A queue of Cloud Tasks is deep"
        filter    = "resource.type = \"cloud_tasks_queue\" AND metric.type = \"cloudtasks.googleapis.com/queue/depth\""
        aligner   = "ALIGN_MEAN"
        threshold = 10000
        duration  = "900s"
      }
      scheduler = {
        title     = "Cloud Scheduler cannot call relay or reconcile"
        filter    = "resource.type = \"cloud_scheduler_job\" AND metric.type = \"logging.googleapis.com/log_entry_count\" AND metric.labels.severity = \"ERROR\""
        aligner   = "ALIGN_RATE"
        threshold = 0
        duration  = "300s"
      }
    },
    {
      for function, it in local.step_functions : "step-${it.name}" => {
        title     = "Messages of ${it.name} are not acknowledged"
        filter    = "resource.type = \"pubsub_subscription\" AND metric.type = \"pubsub.googleapis.com/subscription/oldest_unacked_message_age\" AND resource.labels.subscription_id = \"${it.name}\""
        aligner   = "ALIGN_MAX"
        threshold = 600
        duration  = "300s"
      }
    },
  )
}

resource "google_logging_metric" "value" {
  for_each = local.log_values

  name            = "echoproof/${each.key}"
  description     = "From the log of ${each.value.function}."
  filter          = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=\"${each.value.function}\" AND jsonPayload.message=\"${local.log_messages[each.value.function]}\""
  value_extractor = "EXTRACT(${each.value.field})"

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

resource "google_monitoring_notification_channel" "email" {
  for_each = toset(var.alert_emails)

  display_name = each.value
  type         = "email"
  labels       = { email_address = each.value }
  depends_on   = [google_project_service.this]
}

resource "google_monitoring_alert_policy" "metric" {
  for_each = local.alerts

  display_name          = each.value.title
  combiner              = "OR"
  severity              = contains(["dead-letters", "unknown-effects"], each.key) ? "WARNING" : "ERROR"
  notification_channels = [for channel in google_monitoring_notification_channel.email : channel.id]
  depends_on            = [google_logging_metric.value]

  conditions {
    display_name = each.value.title

    condition_threshold {
      filter          = each.value.filter
      comparison      = "COMPARISON_GT"
      threshold_value = each.value.threshold
      duration        = each.value.duration

      aggregations {
        alignment_period   = "300s"
        per_series_aligner = each.value.aligner
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "${local.runbook} `${startswith(each.key, "step-") ? "step" : each.key}`."
  }

  alert_strategy {
    auto_close = "86400s"
  }
}

# No figure at all is worse than a bad one: the relay is the only guarantee that anything is delivered.
resource "google_monitoring_alert_policy" "relay_absent" {
  display_name          = "The relay does not run"
  combiner              = "OR"
  severity              = "CRITICAL"
  notification_channels = [for channel in google_monitoring_notification_channel.email : channel.id]
  depends_on            = [google_logging_metric.value]

  conditions {
    display_name = "No relay tick for ten minutes"

    condition_absent {
      filter   = "resource.type = \"cloud_run_revision\" AND metric.type = \"logging.googleapis.com/user/echoproof/outbox_oldest_age\""
      duration = "600s"

      aggregations {
        alignment_period     = "60s"
        per_series_aligner   = "ALIGN_COUNT"
        cross_series_reducer = "REDUCE_SUM"
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "${local.runbook} `relay-absent`."
  }
}

resource "google_monitoring_dashboard" "this" {
  dashboard_json = jsonencode({
    displayName = "Echoproof"
    mosaicLayout = {
      columns = 12
      tiles = [
        for index, chart in [
          { title = "Oldest dispatch (s)", filter = "metric.type=\"logging.googleapis.com/user/echoproof/outbox_oldest_age\"", aligner = "ALIGN_PERCENTILE_99" },
          { title = "Unclaimed dispatches", filter = "metric.type=\"logging.googleapis.com/user/echoproof/outbox_unclaimed\"", aligner = "ALIGN_PERCENTILE_99" },
          { title = "Open dead letters", filter = "metric.type=\"logging.googleapis.com/user/echoproof/open_dead_letters\"", aligner = "ALIGN_PERCENTILE_99" },
          { title = "Unknown effects", filter = "metric.type=\"logging.googleapis.com/user/echoproof/unknown_effects\"", aligner = "ALIGN_PERCENTILE_99" },
          { title = "Requests by function", filter = "resource.type=\"cloud_run_revision\" metric.type=\"run.googleapis.com/request_count\"", aligner = "ALIGN_RATE" },
          { title = "Request latency, 95 %", filter = "resource.type=\"cloud_run_revision\" metric.type=\"run.googleapis.com/request_latencies\"", aligner = "ALIGN_PERCENTILE_95" },
          { title = "Oldest unacknowledged message (s)", filter = "resource.type=\"pubsub_subscription\" metric.type=\"pubsub.googleapis.com/subscription/oldest_unacked_message_age\"", aligner = "ALIGN_MAX" },
          { title = "Database connections", filter = "resource.type=\"cloudsql_database\" metric.type=\"cloudsql.googleapis.com/database/postgresql/num_backends\"", aligner = "ALIGN_MAX" },
          { title = "Database CPU", filter = "resource.type=\"cloudsql_database\" metric.type=\"cloudsql.googleapis.com/database/cpu/utilization\"", aligner = "ALIGN_MEAN" },
          { title = "Tasks in queues", filter = "resource.type=\"cloud_tasks_queue\" metric.type=\"cloudtasks.googleapis.com/queue/depth\"", aligner = "ALIGN_MEAN" },
          ] : {
          xPos   = (index % 2) * 6
          yPos   = floor(index / 2) * 4
          width  = 6
          height = 4
          widget = {
            title = chart.title
            xyChart = {
              dataSets = [{
                plotType = "LINE"
                timeSeriesQuery = {
                  timeSeriesFilter = {
                    filter      = chart.filter
                    aggregation = { alignmentPeriod = "60s", perSeriesAligner = chart.aligner }
                  }
                }
              }]
            }
          }
        }
      ]
    }
  })
  depends_on = [google_project_service.this]
}
