output "console_url" {
  description = "The console, behind Identity-Aware Proxy."
  value       = google_cloud_run_v2_service.console.uri
}

output "instance_connection_name" {
  description = "The Cloud SQL instance, as connectors name it."
  value       = google_sql_database_instance.this.connection_name
}

output "intake_url" {
  description = "The HTTP API."
  value       = local.urls["intake"]
}

output "topics" {
  description = "The topic of each step function."
  value       = { for function, topic in google_pubsub_topic.step : function => topic.name }
}
