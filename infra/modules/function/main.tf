# One function: its archive, the function itself, and who may call it.

module "source" {
  source = "../source"

  folder        = var.folder
  name          = var.name
  pipeline_file = var.pipeline_file
  source_bucket = var.source_bucket
}

resource "google_cloudfunctions2_function" "this" {
  name        = var.name
  location    = var.region
  description = var.description

  build_config {
    runtime           = "python311"
    entry_point       = "main"
    docker_repository = var.docker_repository
    service_account   = var.build_account

    source {
      storage_source {
        bucket = var.source_bucket
        object = module.source.object
      }
    }
  }

  service_config {
    available_cpu                    = var.size.cpu
    available_memory                 = var.size.memory
    environment_variables            = merge({ THREADS = tostring(var.size.concurrency), POOL_SIZE = tostring(var.size.pool_size) }, var.environment)
    ingress_settings                 = var.ingress
    max_instance_count               = var.size.max_instances
    max_instance_request_concurrency = var.size.concurrency
    min_instance_count               = var.size.min_instances
    service_account_email            = var.service_account
    timeout_seconds                  = var.timeout
    vpc_connector                    = var.vpc_connector
    vpc_connector_egress_settings    = var.vpc_connector == null ? null : "PRIVATE_RANGES_ONLY"
    direct_vpc_egress                = var.vpc_connector == null ? "VPC_EGRESS_PRIVATE_RANGES_ONLY" : null

    dynamic "direct_vpc_network_interface" {
      for_each = var.vpc_connector == null ? [var.subnetwork] : []
      content {
        subnetwork = direct_vpc_network_interface.value
      }
    }

    dynamic "secret_environment_variables" {
      for_each = var.secrets
      content {
        key        = secret_environment_variables.key
        project_id = var.project
        secret     = secret_environment_variables.value.secret
        version    = secret_environment_variables.value.version
      }
    }
  }

  lifecycle {
    precondition {
      condition     = var.size.pool_size <= var.size.concurrency
      error_message = "functions.${var.folder}.pool_size (${var.size.pool_size}) is more than its concurrency (${var.size.concurrency}): a thread uses one connection at most, lower pool_size."
    }
    precondition {
      condition     = var.size.concurrency == 1 || tonumber(var.size.cpu) >= 1
      error_message = "functions.${var.folder}.concurrency is ${var.size.concurrency}, which needs cpu of at least 1: raise cpu or set concurrency to 1."
    }
    precondition {
      condition     = var.size.max_instances >= max(1, var.size.min_instances)
      error_message = "functions.${var.folder}.max_instances (${var.size.max_instances}) must be at least 1, for without a maximum the connection budget does not hold, and not below min_instances (${var.size.min_instances}): raise it."
    }
  }
}

# Who may call it; on the Cloud Run service, and again when that is replaced.
resource "google_cloud_run_v2_service_iam_member" "invoker" {
  for_each = var.invokers

  name     = google_cloudfunctions2_function.this.name
  location = var.region
  role     = "roles/run.invoker"
  member   = each.value

  lifecycle {
    replace_triggered_by = [google_cloudfunctions2_function.this.id]
  }
}
