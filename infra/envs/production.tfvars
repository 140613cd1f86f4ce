# Regional: a standby in another zone, restorable to any second of a week, intake kept warm. For about 10 operations a
# second of five steps (docs/deploy.md, Sizes).
#
# About 380 EUR a month at rest; an estimate of November 2026 from list prices of europe-west1, without tax. Assumptions:
# Cloud SQL db-custom-2-8192 REGIONAL all month ≈ 230, 50 GB SSD twice ≈ 20, fourteen backups and a week of logs ≈ 15, the
# VPC connector's two e2-micro ≈ 15, one warm instance of intake (1 CPU, idle price) ≈ 25, logs, metrics and alerts ≈ 50,
# the rest ≈ 25. Operations come on top, by use (docs/deploy.md, Costs).

alert_emails = ["on-call@example.com"]
callers      = { "app@my-project.iam.gserviceaccount.com" = ["shop"] }
console      = { operators = ["ada@example.com"], viewers = [] }
mail         = { from = "billing@example.com" }
project      = "my-project"
webhook_url  = "https://app.example.com/webhooks"

database = {
  availability    = "REGIONAL"
  disk_gb         = 50
  max_connections = 400
  tier            = "db-custom-2-8192"
}

functions = {
  intake = { min_instances = 1, max_instances = 10 }
  relay  = { max_instances = 2 }
}
