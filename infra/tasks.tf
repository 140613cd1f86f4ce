# Cloud Tasks: what is due later, and one queue for each paced step function.

resource "google_cloud_tasks_queue" "delayed" {
  name       = "delayed"
  location   = var.region
  depends_on = [google_project_service.this]

  rate_limits {
    max_concurrent_dispatches = 1000
    max_dispatches_per_second = 500
  }

  retry_config {
    max_attempts = 100
    min_backoff  = "10s"
    max_backoff  = "600s"
  }

  stackdriver_logging_config {
    sampling_ratio = 0.01
  }

  lifecycle {
    prevent_destroy = true # its name stays taken for days
  }
}

resource "google_cloud_tasks_queue" "paced" {
  for_each = local.paced_functions

  name       = each.value.name
  location   = var.region
  depends_on = [google_project_service.this]

  rate_limits {
    max_dispatches_per_second = try(each.value.pacing.per_second, 500)
    # As many as find a turn in time (shared/pacing.py).
    max_concurrent_dispatches = try(each.value.pacing.concurrent, max(1, floor(each.value.pacing.per_second * 10 / 2.1)), 1000)
  }

  retry_config {
    max_attempts = 100
    min_backoff  = "10s"
    max_backoff  = "600s"
  }

  stackdriver_logging_config {
    sampling_ratio = 0.01
  }

  lifecycle {
    prevent_destroy = true

    precondition {
      condition     = each.value.timeout + 30 <= 1800
      error_message = "The timeout of ${each.key} is ${each.value.timeout}s; with 30 s to spare its dispatch deadline would be ${each.value.timeout + 30}s, but Cloud Tasks waits 1800 s at most: shorten timeout in pipeline.yaml to 29m30s."
    }
  }
}
