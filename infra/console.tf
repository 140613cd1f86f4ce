# The console: still a function, but on a Cloud Run service of its own, because that resource has Identity-Aware Proxy.

locals {
  console_image = "${var.region}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.this.repository_id}/console:${substr(module.console_source.content, 0, 16)}"
}

module "console_source" {
  source = "./modules/source"

  folder        = "console"
  name          = "console"
  pipeline_file = local.pipeline_file
  source_bucket = google_storage_bucket.source.name
  with          = ["migrations"] # its container runs the migrations too
}

resource "google_cloud_run_v2_service" "console" {
  provider = google-beta

  name                = "console"
  location            = var.region
  description         = "Inspect, replay, resolve and discard, for people."
  ingress             = "INGRESS_TRAFFIC_ALL"
  iap_enabled         = true
  deletion_protection = false

  build_config {
    base_image               = "${var.region}-docker.pkg.dev/serverless-runtimes/google-22-full/runtimes/python311"
    enable_automatic_updates = false # the migrations run in this image too, so it must be whole
    function_target          = "main"
    image_uri                = local.console_image
    service_account          = google_service_account.build.id
    source_location          = "gs://${google_storage_bucket.source.name}/${module.console_source.object}"
  }

  template {
    service_account                  = google_service_account.function["console"].email
    timeout                          = "60s"
    max_instance_request_concurrency = local.sizes["console"].concurrency

    scaling {
      min_instance_count = local.sizes["console"].min_instances
      max_instance_count = local.sizes["console"].max_instances
    }

    vpc_access {
      connector = one(google_vpc_access_connector.this[*].id)
      egress    = "PRIVATE_RANGES_ONLY"

      dynamic "network_interfaces" {
        for_each = var.direct_vpc_egress ? [google_compute_subnetwork.functions.id] : []
        content {
          subnetwork = network_interfaces.value
        }
      }
    }

    containers {
      image = local.console_image

      resources {
        limits = {
          cpu    = local.sizes["console"].cpu
          memory = local.sizes["console"].memory
        }
      }

      dynamic "env" {
        for_each = merge(local.database_environment["console"], {
          CONSOLE_AUDIENCE     = "/projects/${data.google_project.this.number}/locations/${var.region}/services/console"
          CONSOLE_OPERATORS    = join(",", sort(var.console.operators))
          CONSOLE_VIEWERS      = join(",", sort(var.console.viewers))
          GOOGLE_CLOUD_PROJECT = var.project
          POOL_SIZE            = tostring(local.sizes["console"].pool_size)
          THREADS              = tostring(local.sizes["console"].concurrency)
        })
        content {
          name  = env.key
          value = env.value
        }
      }

      env {
        name = "CONSOLE_SECRET"
        value_source {
          secret_key_ref {
            secret  = local.secret_values["console-secret"].secret
            version = local.secret_values["console-secret"].version
          }
        }
      }
    }
  }

  depends_on = [
    google_artifact_registry_repository_iam_member.build,
    google_project_iam_member.build,
    google_project_iam_member.function,
    google_secret_manager_secret_iam_member.function,
    google_storage_bucket_iam_member.build,
  ]
}

# Only Identity-Aware Proxy calls the service; people are let through to it here, and given their role in the code.
resource "google_cloud_run_v2_service_iam_member" "iap" {
  name     = google_cloud_run_v2_service.console.name
  location = var.region
  role     = "roles/run.invoker"
  member   = google_project_service_identity.iap.member

  lifecycle {
    replace_triggered_by = [google_cloud_run_v2_service.console.id]
  }
}

resource "google_iap_web_cloud_run_service_iam_member" "people" {
  for_each = toset(concat(var.console.operators, var.console.viewers))

  cloud_run_service_name = google_cloud_run_v2_service.console.name
  location               = var.region
  role                   = "roles/iap.httpsResourceAccessor"
  member                 = "user:${each.value}"
}
