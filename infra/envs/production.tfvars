# Regional: a standby in another zone, restorable to any second of a week, intake kept warm. For about 50 operations a
# second (docs/deploy.md, sizing). About 420 EUR a month at rest: Cloud SQL db-custom-2-8192 REGIONAL ≈ 280 with 50 GB SSD
# and backups ≈ 40, the VPC connector ≈ 15, one warm instance of intake ≈ 60, the rest by use.

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
