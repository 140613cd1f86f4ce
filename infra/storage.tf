# Two buckets: the archives of the functions, and what the steps make.

resource "google_storage_bucket" "source" {
  #checkov:skip=CKV_GCP_62:Cloud Audit Logs tell who reads; access logs are for public buckets
  name                        = "${var.prefix}-source-${var.project}"
  location                    = upper(coalesce(var.bucket_location, var.region))
  public_access_prevention    = "enforced"
  uniform_bucket_level_access = true
  force_destroy               = true # archives are made anew from the repository
  depends_on                  = [google_project_service.this]

  versioning {
    enabled = true
  }

  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      days_since_noncurrent_time = 30
    }
  }
}

resource "google_storage_bucket" "artifacts" {
  #checkov:skip=CKV_GCP_62:Cloud Audit Logs tell who reads; access logs are for public buckets
  name                        = "${var.prefix}-artifacts-${var.project}"
  location                    = upper(coalesce(var.bucket_location, var.region))
  public_access_prevention    = "enforced"
  uniform_bucket_level_access = true
  depends_on                  = [google_project_service.this]

  versioning {
    enabled = true
  }

  soft_delete_policy {
    retention_duration_seconds = 2592000 # 30 days
  }
}

resource "google_artifact_registry_repository" "this" {
  #checkov:skip=CKV_GCP_84:the images hold this repository's code and no secret
  repository_id = "echoproof"
  location      = var.region
  format        = "DOCKER"
  description   = "Containers of the console and the migrations."
  depends_on    = [google_project_service.this]

  cleanup_policies {
    id     = "keep-ten"
    action = "KEEP"

    most_recent_versions {
      keep_count = 10
    }
  }
}
