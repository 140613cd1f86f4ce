# PostgreSQL: private, IAM users only, backed up, restorable to any second of the last week.

resource "google_sql_database_instance" "this" {
  #checkov:skip=CKV_GCP_108:a name for each address would be looked up at each connection; all come from one network
  #checkov:skip=CKV_GCP_109:a failed statement's text may hold a caller's data, so none is logged
  #checkov:skip=CKV2_GCP_13:a line a statement says nothing that Query Insights does not, and costs more than the database
  name                = var.database.name
  database_version    = "POSTGRES_18"
  region              = var.region
  deletion_protection = var.database.deletion_protection
  depends_on          = [google_service_networking_connection.database]

  settings {
    tier                        = var.database.tier
    edition                     = "ENTERPRISE"
    availability_type           = var.database.availability
    connector_enforcement       = "REQUIRED"
    deletion_protection_enabled = var.database.deletion_protection
    disk_autoresize             = true
    disk_size                   = var.database.disk_gb
    disk_type                   = "PD_SSD"

    backup_configuration {
      enabled                        = true
      point_in_time_recovery_enabled = true
      start_time                     = "02:00"
      transaction_log_retention_days = var.database.log_retention_days

      backup_retention_settings {
        retained_backups = var.database.backup_retention
        retention_unit   = "COUNT"
      }
    }

    insights_config {
      query_insights_enabled  = true
      query_plans_per_minute  = 5
      query_string_length     = 1024
      record_application_tags = false
      record_client_address   = false
    }

    ip_configuration {
      ipv4_enabled                                  = false
      private_network                               = google_compute_network.this.id
      enable_private_path_for_google_cloud_services = true
      ssl_mode                                      = "TRUSTED_CLIENT_CERTIFICATE_REQUIRED"
    }

    deny_maintenance_period {
      start_date = var.database.deny_maintenance.start
      end_date   = var.database.deny_maintenance.end
      time       = "00:00:00"
    }

    maintenance_window {
      day          = 7
      hour         = 3
      update_track = "stable"
    }

    database_flags {
      name  = "cloudsql.iam_authentication"
      value = "on"
    }
    database_flags {
      name  = "max_connections"
      value = tostring(var.database.max_connections)
    }
    database_flags {
      name  = "log_checkpoints"
      value = "on"
    }
    database_flags {
      name  = "log_connections"
      value = "on"
    }
    database_flags {
      name  = "log_disconnections"
      value = "on"
    }
    database_flags {
      name  = "log_duration"
      value = "off"
    }
    database_flags {
      name  = "log_lock_waits"
      value = "on"
    }
    database_flags {
      name  = "log_min_duration_statement"
      value = "-1" # a statement's text may hold a caller's data
    }
    database_flags {
      name  = "log_min_error_statement"
      value = "panic" # as above
    }
    database_flags {
      name  = "log_min_messages"
      value = "warning"
    }
    database_flags {
      name  = "log_statement"
      value = "ddl"
    }
    database_flags {
      name  = "log_temp_files"
      value = "0"
    }
    database_flags {
      name  = "cloudsql.enable_pgaudit"
      value = "on"
    }
    database_flags {
      name  = "autovacuum_naptime"
      value = "15" # the outbox and the steps change all the time
    }
  }

  lifecycle {
    ignore_changes = [settings[0].disk_size] # it grows by itself

    precondition {
      condition     = local.connections <= var.database.max_connections
      error_message = "The functions may open ${local.connections} connections (twice the sum of max_instances × pool_size, for two revisions at once, and 20), but database.max_connections is ${var.database.max_connections}: lower max_instances or pool_size in functions or function_defaults, or raise database.max_connections and the tier."
    }
  }
}

resource "google_sql_database" "this" {
  name            = "echoproof"
  instance        = google_sql_database_instance.this.name
  deletion_policy = "ABANDON"
}

# One database user a function, its service account; migrations grant each its role, and nothing else.
resource "google_sql_user" "this" {
  for_each = google_service_account.function

  name            = trimsuffix(each.value.email, ".gserviceaccount.com")
  instance        = google_sql_database_instance.this.name
  type            = "CLOUD_IAM_SERVICE_ACCOUNT"
  deletion_policy = "ABANDON"
  database_roles  = each.key == "migrate" ? ["cloudsqlsuperuser"] : null # it makes roles and owns the schema
}
