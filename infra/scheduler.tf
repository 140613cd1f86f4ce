# The clock of relay and reconcile.

resource "google_cloud_scheduler_job" "this" {
  for_each = { relay = var.schedules.relay, reconcile = var.schedules.reconcile }

  name             = each.key
  region           = var.region
  description      = local.descriptions[each.key]
  schedule         = each.value
  time_zone        = "Etc/UTC"
  attempt_deadline = "${local.functions[each.key].timeout + 30}s"
  depends_on       = [google_project_service.this]

  retry_config {
    retry_count = 0 # the next tick comes anyway
  }

  http_target {
    http_method = "POST"
    uri         = local.urls[each.key]

    oidc_token {
      service_account_email = google_service_account.caller["scheduler"].email
      audience              = local.urls[each.key]
    }
  }

  lifecycle {
    precondition {
      condition     = local.functions[each.key].timeout + 30 >= 15 && local.functions[each.key].timeout + 30 <= 1800
      error_message = "Cloud Scheduler would wait ${local.functions[each.key].timeout + 30}s for ${each.key} (its timeout and 30 s), but it waits between 15 s and 30 min: change platform_timeouts.${each.key}."
    }
  }
}
