output "content" {
  description = "SHA-256 of what is in the archive."
  value       = local.content
}

output "object" {
  description = "Name of the archive in the bucket."
  value       = google_storage_bucket_object.this.name
}
