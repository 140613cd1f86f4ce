# A cheap project to try things in: one zone, small machines, nothing kept warm.
#
# About 35 EUR a month at rest; an estimate of November 2026 from list prices of europe-west1, without tax. Assumptions:
# Cloud SQL db-g1-small in one zone all month ≈ 25, 10 GB SSD and its backups ≈ 3, Cloud Scheduler, secrets, storage, images
# and log volume ≈ 4, functions and messages ≈ 2: two ticks a minute and some operations a day, mostly in the free tier.
# Direct VPC egress costs nothing, and an instance may take a minute to start.

callers     = { "app@my-project.iam.gserviceaccount.com" = ["*"] }
console     = { operators = ["ada@example.com"] }
mail        = { from = "billing@example.com" }
project     = "my-project"
webhook_url = "https://app.example.com/webhooks"

database = {
  availability        = "ZONAL"
  deletion_protection = false
  disk_gb             = 10
  log_retention_days  = 1
  max_connections     = 150
  tier                = "db-g1-small"
}

function_defaults = {
  max_instances = 2
}

direct_vpc_egress = true
