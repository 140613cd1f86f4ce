# The private way to the database: nothing of it has a public address.

resource "google_compute_network" "this" {
  #checkov:skip=CKV2_GCP_18:nothing listens in this network, and one without rules lets nothing in
  name                    = "echoproof"
  auto_create_subnetworks = false
  depends_on              = [google_project_service.this]
}

resource "google_compute_subnetwork" "functions" {
  name                     = "functions"
  network                  = google_compute_network.this.id
  ip_cidr_range            = var.functions_range
  private_ip_google_access = true

  log_config {
    aggregation_interval = "INTERVAL_10_MIN"
    flow_sampling        = 0.1
    metadata             = "INCLUDE_ALL_METADATA"
  }

  lifecycle {
    precondition {
      condition     = !var.direct_vpc_egress || local.addresses_needed <= local.addresses
      error_message = "Direct VPC egress takes two addresses an instance, ${local.addresses_needed} for all of max_instances, but functions_range has ${local.addresses}: widen functions_range, or lower max_instances."
    }
  }
}

locals {
  addresses_needed = 2 * sum([for size in values(local.sizes) : size.max_instances])
  addresses        = pow(2, 32 - tonumber(split("/", var.functions_range)[1])) - 4 # Google keeps four
}

resource "google_vpc_access_connector" "this" {
  count = var.direct_vpc_egress ? 0 : 1

  name          = "echoproof"
  network       = google_compute_network.this.name
  ip_cidr_range = "10.9.0.0/28"
  machine_type  = "e2-micro"
  min_instances = 2
  max_instances = 3
  depends_on    = [google_project_service.this]
}

resource "google_compute_global_address" "database" {
  name          = "echoproof-database"
  network       = google_compute_network.this.id
  purpose       = "VPC_PEERING"
  address_type  = "INTERNAL"
  prefix_length = 20
}

resource "google_service_networking_connection" "database" {
  network                 = google_compute_network.this.id
  service                 = "servicenetworking.googleapis.com"
  reserved_peering_ranges = [google_compute_global_address.database.name]
  deletion_policy         = "ABANDON" # the peering cannot be deleted while Cloud SQL still holds it
}
