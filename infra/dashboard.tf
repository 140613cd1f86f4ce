# One page that shows how the pipeline is.

locals {
  user_metric = "metric.type=\"logging.googleapis.com/user/echoproof"
  charts = [
    { title = "Oldest dispatch (s)", filter = "${local.user_metric}/outbox_oldest_age\"", aligner = "ALIGN_PERCENTILE_99" },
    { title = "Unclaimed dispatches", filter = "${local.user_metric}/outbox_unclaimed\"", aligner = "ALIGN_PERCENTILE_99" },
    { title = "Open dead letters", filter = "${local.user_metric}/open_dead_letters\"", aligner = "ALIGN_PERCENTILE_99" },
    { title = "Unknown effects", filter = "${local.user_metric}/unknown_effects\"", aligner = "ALIGN_PERCENTILE_99" },
    { title = "Requests by function", filter = "resource.type=\"cloud_run_revision\" metric.type=\"run.googleapis.com/request_count\"", aligner = "ALIGN_RATE" },
    { title = "Request latency, 95 %", filter = "resource.type=\"cloud_run_revision\" metric.type=\"run.googleapis.com/request_latencies\"", aligner = "ALIGN_PERCENTILE_95" },
    { title = "Oldest unacknowledged message (s)", filter = "resource.type=\"pubsub_subscription\" metric.type=\"pubsub.googleapis.com/subscription/oldest_unacked_message_age\"", aligner = "ALIGN_MAX" },
    { title = "Database connections", filter = "resource.type=\"cloudsql_database\" metric.type=\"cloudsql.googleapis.com/database/postgresql/num_backends\"", aligner = "ALIGN_MAX" },
    { title = "Database CPU", filter = "resource.type=\"cloudsql_database\" metric.type=\"cloudsql.googleapis.com/database/cpu/utilization\"", aligner = "ALIGN_MEAN" },
    { title = "Tasks in queues", filter = "resource.type=\"cloud_tasks_queue\" metric.type=\"cloudtasks.googleapis.com/queue/depth\"", aligner = "ALIGN_MEAN" },
  ]
}

resource "google_monitoring_dashboard" "this" {
  depends_on = [google_project_service.this]

  dashboard_json = jsonencode({
    displayName = "Echoproof"
    mosaicLayout = {
      columns = 12
      tiles = [
        for index, chart in local.charts : {
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
}
