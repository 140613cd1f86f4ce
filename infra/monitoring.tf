# Alerts. Each names its section of docs/runbook.md; a test compares the two.

locals {
  on = { # what a series belongs to; an alert's filter must name it
    database     = "resource.type=\"cloudsql_database\" AND metric.type=\"cloudsql.googleapis.com"
    function     = "resource.type=\"cloud_run_revision\" AND metric.type=\"run.googleapis.com"
    logs         = "resource.type=\"cloud_run_revision\" AND metric.type=\"logging.googleapis.com/user/echoproof"
    queue        = "resource.type=\"cloud_tasks_queue\" AND metric.type=\"cloudtasks.googleapis.com"
    scheduler    = "resource.type=\"cloud_scheduler_job\" AND metric.type=\"logging.googleapis.com"
    subscription = "resource.type=\"pubsub_subscription\" AND metric.type=\"pubsub.googleapis.com"
  }
  requests = "${local.on.function}/request_count\""
  pushes   = "${local.on.subscription}/subscription/push_request_count\""

  # What every condition has unless it says otherwise.
  condition = {
    aligner     = "ALIGN_MAX"
    comparison  = "COMPARISON_GT"
    denominator = null
    duration    = "0s"
    group       = []
    missing     = null
    period      = "300s"
    reducer     = null
    threshold   = 0
  }
  count = { aligner = "ALIGN_DELTA", reducer = "REDUCE_SUM" }
  ratio = { aligner = "ALIGN_RATE", reducer = "REDUCE_SUM" }

  # Objectives: share of bad events, and the burn of their 28 days' budget that tells somebody. Two windows, so that an
  # alert starts soon and ends soon: 2 % of the budget in an hour, 5 % in six.
  objectives = {
    acceptance = { title = "Intake refuses or fails", share = var.objectives.acceptance, bad = "${local.requests} AND resource.labels.service_name=\"intake\" AND metric.labels.response_code_class=\"5xx\"", all = "${local.requests} AND resource.labels.service_name=\"intake\"" }
    completion = { title = "Attempts end in a review", share = var.objectives.completion, bad = "${local.on.logs}/settled_for_review\"", all = "${local.on.logs}/settled\"" }
    start      = { title = "Dispatches start late", share = var.objectives.start, bad = "${local.on.logs}/ticks_with_late_rows\"", all = "${local.on.logs}/ticks\"" }
  }
  burns = {
    fast = { factor = 13.4, severity = "CRITICAL", windows = { "an hour" = "3600s", "five minutes" = "300s" } }
    slow = { factor = 5.6, severity = "ERROR", windows = { "six hours" = "21600s", "half an hour" = "1800s" } }
  }
  objective_alerts = merge([
    for name, it in local.objectives : {
      for burn, at in local.burns : "objective-${name}-${burn}" => {
        section = "objective-${name}", title = "${it.title}: the error budget burns ${burn}", severity = at.severity, combiner = "AND"
        conditions = {
          for words, seconds in at.windows : "over ${words}" => merge(local.condition, local.ratio, {
            filter = it.bad, denominator = it.all, period = seconds, threshold = tonumber(format("%.4f", min(0.99, at.factor * (1 - it.share))))
          })
        }
      }
    }
  ]...)

  pipeline_alerts = {
    dead-letters = { title = "Something needs a decision", severity = "WARNING", conditions = {
      "open dead letters" = merge(local.condition, local.count, { filter = "${local.on.logs}/sweeps_with_letters\"" })
    } }
    outbox-age = { title = "Dispatches wait ten minutes", severity = "ERROR", conditions = {
      "oldest dispatch" = merge(local.condition, local.count, { filter = "${local.on.logs}/ticks_with_stuck_rows\"", duration = "300s" })
    } }
    push-errors = { title = "Pushes are refused", severity = "ERROR", conditions = {
      "one in ten" = merge(local.condition, local.ratio, { filter = "${local.pushes} AND metric.labels.response_class!=\"ack\"", denominator = local.pushes, group = ["resource.labels.subscription_id"], threshold = 0.1, duration = "600s" })
    } }
    relay-absent = { title = "The relay does not run", severity = "CRITICAL", conditions = {
      "no tick for ten minutes" = merge(local.condition, local.count, { filter = "${local.on.logs}/ticks\"", comparison = "COMPARISON_LT", threshold = 1, period = "600s", missing = "EVALUATION_MISSING_DATA_ACTIVE", duration = "60s" })
    } }
    scheduler = { title = "Cloud Scheduler cannot call relay or reconcile", severity = "ERROR", conditions = {
      "failed calls" = merge(local.condition, { filter = "${local.on.scheduler}/log_entry_count\" AND metric.labels.severity=\"ERROR\"", aligner = "ALIGN_RATE", duration = "300s" })
    } }
    server-errors = { title = "Functions answer with errors", severity = "ERROR", conditions = {
      "one in twenty" = merge(local.condition, local.ratio, { filter = "${local.requests} AND metric.labels.response_code_class=\"5xx\"", denominator = local.requests, group = ["resource.labels.service_name"], threshold = 0.05, duration = "600s" })
    } }
    tasks-depth = { title = "A queue of Cloud Tasks is deep", severity = "ERROR", conditions = {
      "ten thousand tasks" = merge(local.condition, { filter = "${local.on.queue}/queue/depth\"", aligner = "ALIGN_MEAN", threshold = 10000, duration = "900s" })
    } }
    unknown-effects = { title = "An effect's outcome has been unknown for an hour", severity = "WARNING", conditions = {
      "oldest unknown effect" = merge(local.condition, local.count, { filter = "${local.on.logs}/sweeps_with_unknowns\"" })
    } }
  }
  database_alerts = {
    database-connections = { title = "The database is short of connections", severity = "ERROR", conditions = {
      "80 % of max_connections" = merge(local.condition, { filter = "${local.on.database}/database/postgresql/num_backends\"", reducer = "REDUCE_SUM", group = ["resource.labels.database_id"], threshold = floor(var.database.max_connections * 0.8), duration = "300s" })
    } }
    database-cpu = { title = "The database is busy", severity = "ERROR", conditions = {
      "85 % of its CPUs" = merge(local.condition, { filter = "${local.on.database}/database/cpu/utilization\"", aligner = "ALIGN_MEAN", threshold = 0.85, duration = "900s" })
    } }
    database-disk = { title = "The database's disk is filling", severity = "ERROR", conditions = {
      "85 % of the disk" = merge(local.condition, { filter = "${local.on.database}/database/disk/utilization\"", aligner = "ALIGN_MEAN", threshold = 0.85, duration = "900s" })
    } }
  }
  instance_alerts = {
    for function, size in local.sizes : "instances-${replace(function, "_", "-")}" => {
      section = "instances", title = "${function} is at its maximum of instances", severity = "ERROR", conditions = {
        "all ${size.max_instances}" = merge(local.condition, { filter = "${local.on.function}/container/instance_count\" AND metric.labels.state=\"active\" AND resource.labels.service_name=\"${replace(function, "_", "-")}\"", reducer = "REDUCE_SUM", threshold = size.max_instances - 0.5, duration = "900s" })
      }
    }
  }
  step_alerts = {
    for function, it in local.step_functions : "step-${it.name}" => {
      section = "step", title = "Messages of ${it.name} are not acknowledged", severity = "ERROR", conditions = {
        "oldest message" = merge(local.condition, { filter = "${local.on.subscription}/subscription/oldest_unacked_message_age\" AND resource.labels.subscription_id=\"${it.name}\"", threshold = 600, duration = "300s" })
      }
    }
  }
  alerts = merge(local.pipeline_alerts, local.database_alerts, local.objective_alerts, local.instance_alerts, local.step_alerts)
}

resource "google_monitoring_notification_channel" "email" {
  for_each = toset(var.alert_emails)

  display_name = each.value
  type         = "email"
  labels       = { email_address = each.value }
  depends_on   = [google_project_service.this]
}

resource "google_monitoring_alert_policy" "this" {
  for_each = local.alerts

  display_name          = each.value.title
  combiner              = try(each.value.combiner, "OR")
  severity              = each.value.severity
  notification_channels = [for channel in google_monitoring_notification_channel.email : channel.id]
  # A log metric that has just been made is unknown to alerts for up to ten minutes: apply again (docs/deploy.md).
  depends_on = [google_logging_metric.count]

  dynamic "conditions" {
    for_each = each.value.conditions
    content {
      display_name = conditions.key

      condition_threshold {
        filter                  = conditions.value.filter
        denominator_filter      = conditions.value.denominator
        comparison              = conditions.value.comparison
        threshold_value         = conditions.value.threshold
        duration                = conditions.value.duration
        evaluation_missing_data = conditions.value.missing

        aggregations {
          alignment_period     = conditions.value.period
          cross_series_reducer = conditions.value.reducer
          group_by_fields      = conditions.value.group
          per_series_aligner   = conditions.value.aligner
        }

        dynamic "denominator_aggregations" {
          for_each = conditions.value.denominator == null ? [] : [conditions.value]
          content {
            alignment_period     = denominator_aggregations.value.period
            cross_series_reducer = denominator_aggregations.value.reducer
            group_by_fields      = denominator_aggregations.value.group
            per_series_aligner   = denominator_aggregations.value.aligner
          }
        }
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "See docs/runbook.md in the repository, section `${try(each.value.section, each.key)}`."
  }

  alert_strategy {
    auto_close = "86400s"
  }
}
