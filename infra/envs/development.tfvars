# A cheap project to try things in: one zone, small machines, nothing kept warm.
# About 45 EUR a month at rest: Cloud SQL db-f1-micro with 10 GB ≈ 12, the VPC connector's two e2-micro ≈ 15, Cloud Scheduler,
# secrets and storage ≈ 3, backups ≈ 2; the functions cost by use (two ticks a minute stay within the free tier).
# Direct VPC egress saves the connector.

callers = { "app@my-project.iam.gserviceaccount.com" = ["*"] }
project = "my-project"

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
