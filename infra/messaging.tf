# A topic and a push subscription for each step function; dead letters, and a parking place for those.

resource "google_pubsub_topic" "step" {
  #checkov:skip=CKV_GCP_83:the messages hold ids only; a key of one's own is one more thing that can be lost (docs/decisions/0014)
  for_each = local.step_functions

  name                       = each.value.name
  message_retention_duration = "604800s" # 7 days, to seek back to after a mistake
  depends_on                 = [google_project_service.this]
}

resource "google_pubsub_topic" "dead_letter" {
  #checkov:skip=CKV_GCP_83:the messages hold ids only, as above
  name                       = "dead-letter"
  message_retention_duration = "2678400s" # 31 days
  depends_on                 = [google_project_service.this]
}

resource "google_pubsub_subscription" "step" {
  for_each = local.step_functions

  name                       = each.value.name
  topic                      = google_pubsub_topic.step[each.key].id
  ack_deadline_seconds       = local.ack_deadlines[each.key]
  message_retention_duration = "604800s"

  push_config {
    push_endpoint = local.urls[each.key]

    oidc_token {
      service_account_email = google_service_account.caller["push"].email
      audience              = local.urls[each.key]
    }
  }

  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.dead_letter.id
    max_delivery_attempts = 100 # only infrastructure failure is refused, so this is hours of an outage
  }

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  expiration_policy {
    ttl = "" # never: unset, it would be deleted after 31 idle days
  }

  lifecycle {
    precondition {
      condition     = each.value.transport != "pubsub" || each.value.timeout < local.ack_deadlines[each.key] && local.ack_deadlines[each.key] <= 600
      error_message = "The timeout of ${each.key} is ${each.value.timeout}s; with 30 s to spare its ack deadline would be ${local.ack_deadlines[each.key]}s, but Pub/Sub waits 600 s at most: shorten timeout in pipeline.yaml to 570s, or use transport: tasks."
    }
  }

  depends_on = [google_pubsub_topic_iam_member.dead_letter_publisher]
}

locals {
  # Pub/Sub waits this long for a push's answer; a paced step's topic carries nothing, and takes what Pub/Sub allows.
  ack_deadlines = {
    for function, it in local.step_functions : function => it.transport == "pubsub" ? it.timeout + 30 : 600
  }
}

resource "google_pubsub_subscription" "dead_letter" {
  name                       = "dead-letter"
  topic                      = google_pubsub_topic.dead_letter.id
  ack_deadline_seconds       = local.platform_functions["dead_letter"].timeout + 30
  message_retention_duration = "2678400s"

  push_config {
    push_endpoint = local.urls["dead_letter"]

    oidc_token {
      service_account_email = google_service_account.caller["push"].email
      audience              = local.urls["dead_letter"]
    }
  }

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  expiration_policy {
    ttl = ""
  }
}

# Nobody reads it: the messages are still there should dead_letter itself be broken.
resource "google_pubsub_subscription" "parking" {
  name                       = "dead-letter-parking"
  topic                      = google_pubsub_topic.dead_letter.id
  message_retention_duration = "2678400s"

  expiration_policy {
    ttl = ""
  }
}
