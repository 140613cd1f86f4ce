# The migrations: a job as the owner of the schema, run once for each content of migrations/ and before any function
# that needs it. An advisory lock keeps two at once apart; each step is written to go on where one was killed.

locals {
  migrations_hash = substr(sha256(jsonencode({
    for name in fileset("${path.module}/../migrations", "*.sql") : name => filesha256("${path.module}/../migrations/${name}")
  })), 0, 16)
  # The database role of each function (migrations/*_roles.sql), granted to its user by the job.
  database_roles = {
    for function in concat(keys(local.functions), ["console"]) : google_sql_user.this[function].name => function
  }
}

resource "google_cloud_run_v2_job" "migrate" {
  provider = google-beta

  name                = "migrate"
  location            = var.region
  deletion_protection = false
  # A new execution whenever the migrations or the roles change, and the apply waits for it.
  run_execution_token = substr(sha256("${local.migrations_hash} ${jsonencode(local.database_roles)}"), 0, 16)

  template {
    template {
      service_account = google_service_account.function["migrate"].email
      max_retries     = 1
      timeout         = "1800s"

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
        image   = google_cloud_run_v2_service.console.build_config[0].image_uri
        command = ["/cnb/lifecycle/launcher"]
        args    = ["python", "-m", "shared.migrate_job"]

        dynamic "env" {
          for_each = {
            DATABASE_NAME            = google_sql_database.this.name
            DATABASE_ROLES           = jsonencode(local.database_roles)
            DATABASE_USER            = google_sql_user.this["migrate"].name
            INSTANCE_CONNECTION_NAME = google_sql_database_instance.this.connection_name
          }
          content {
            name  = env.key
            value = env.value
          }
        }
      }
    }
  }

  depends_on = [google_project_iam_member.function]
}
