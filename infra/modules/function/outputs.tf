output "name" {
  description = "The function's name."
  value       = google_cloudfunctions2_function.this.name
}

output "uri" {
  description = "Its address as Cloud Run gave it."
  value       = google_cloudfunctions2_function.this.service_config[0].uri
}
