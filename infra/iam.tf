# One identity for each function with exactly its rights; docs/iam.md has the whole matrix, and a test compares.

resource "google_service_account" "function" {
  for_each = toset(concat(keys(local.functions), ["console", "migrate"]))

  account_id   = "${var.prefix}-${replace(each.key, "_", "-")}"
  display_name = "Echoproof ${each.key}"
  depends_on   = [google_project_service.this]
}

# Who calls the internal functions: Pub/Sub, Cloud Tasks, Cloud Scheduler, each with an identity of its own.
resource "google_service_account" "caller" {
  for_each = toset(["push", "scheduler", "tasks"])

  account_id   = "${var.prefix}-call-${each.key}"
  display_name = "Echoproof caller ${each.key}"
  depends_on   = [google_project_service.this]
}

resource "google_service_account" "build" {
  account_id   = "${var.prefix}-build"
  display_name = "Echoproof build"
  depends_on   = [google_project_service.this]
}

# The database's connector and its IAM login have no narrower resource than the project.
resource "google_project_iam_member" "function" {
  for_each = {
    for pair in setproduct(keys(google_service_account.function), ["cloudsql.client", "cloudsql.instanceUser"]) :
    "${pair[0]}/${pair[1]}" => { function = pair[0], role = "roles/${pair[1]}" }
  }

  project = var.project
  role    = each.value.role
  member  = google_service_account.function[each.value.function].member
}

locals {
  # Which function may publish to which topic: what follows it, at once after its commit; the relay to all.
  publishers = merge(
    { for function in local.first_functions : "intake/${function}" => { function = "intake", topic = function } },
    { for function in keys(local.step_functions) : "relay/${function}" => { function = "relay", topic = function } },
    { for function in keys(local.step_functions) : "reconcile/${function}" => { function = "reconcile", topic = function } },
    merge([
      for function, it in local.step_functions : {
        for follower in it.followers : "${function}/${follower}" => { function = function, topic = follower }
      }
    ]...),
  )
  # Who hands delayed and paced dispatches over: everybody who publishes (docs/decisions/0008).
  enqueuers = toset(distinct([for pair in values(local.publishers) : pair.function]))
  paced_enqueuers = {
    for name, pair in local.publishers : name => pair if contains(keys(local.paced_functions), pair.topic)
  }
}

resource "google_pubsub_topic_iam_member" "publisher" {
  for_each = local.publishers

  topic  = google_pubsub_topic.step[each.value.topic].id
  role   = "roles/pubsub.publisher"
  member = google_service_account.function[each.value.function].member
}

resource "google_cloud_tasks_queue_iam_member" "delayed" {
  for_each = local.enqueuers

  name     = google_cloud_tasks_queue.delayed.name
  location = var.region
  role     = "roles/cloudtasks.enqueuer"
  member   = google_service_account.function[each.key].member
}

resource "google_cloud_tasks_queue_iam_member" "paced" {
  for_each = local.paced_enqueuers

  name     = google_cloud_tasks_queue.paced[each.value.topic].name
  location = var.region
  role     = "roles/cloudtasks.enqueuer"
  member   = google_service_account.function[each.value.function].member
}

# A task carries a token of the tasks account, so whoever makes tasks may act as it.
resource "google_service_account_iam_member" "act_as_tasks" {
  for_each = local.enqueuers

  service_account_id = google_service_account.caller["tasks"].name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.function[each.key].member
}

# Pub/Sub's own agent: makes the push account's tokens, and moves dead letters.
resource "google_service_account_iam_member" "push_tokens" {
  service_account_id = google_service_account.caller["push"].name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = google_project_service_identity.pubsub.member
}

resource "google_pubsub_topic_iam_member" "dead_letter_publisher" {
  topic  = google_pubsub_topic.dead_letter.id
  role   = "roles/pubsub.publisher"
  member = google_project_service_identity.pubsub.member
}

resource "google_pubsub_subscription_iam_member" "dead_letter_subscriber" {
  for_each = local.step_functions

  subscription = google_pubsub_subscription.step[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = google_project_service_identity.pubsub.member
}

# Steps that make documents make them, and none of them changes or deletes one.
resource "google_storage_bucket_iam_member" "artifacts" {
  for_each = toset([for function, it in local.step_functions : function if contains(it.providers, "storage")])

  bucket = google_storage_bucket.artifacts.name
  role   = "roles/storage.objectCreator"
  member = google_service_account.function[each.key].member
}

# They look an upload up, and steps that attach a document read it.
resource "google_storage_bucket_iam_member" "artifacts_reader" {
  for_each = toset([
    for function, it in local.step_functions : function if length(setintersection(it.providers, ["email", "storage"])) > 0
  ])

  bucket = google_storage_bucket.artifacts.name
  role   = "roles/storage.objectViewer"
  member = google_service_account.function[each.key].member
}

# New projects' default build account may do none of this, and the old one far too much.
resource "google_project_iam_member" "build" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = google_service_account.build.member
}

resource "google_artifact_registry_repository_iam_member" "build" {
  repository = google_artifact_registry_repository.this.name
  location   = var.region
  role       = "roles/artifactregistry.writer"
  member     = google_service_account.build.member
}

resource "google_storage_bucket_iam_member" "build" {
  bucket = google_storage_bucket.source.name
  role   = "roles/storage.objectViewer"
  member = google_service_account.build.member
}
