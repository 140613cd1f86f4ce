terraform {
  required_version = ">= 1.11"

  required_providers {
    archive = {
      source  = "hashicorp/archive"
      version = "~> 2.7"
    }
    google = {
      source  = "hashicorp/google"
      version = ">= 7.42, < 8.0"
    }
    google-beta = {
      source  = "hashicorp/google-beta"
      version = ">= 7.42, < 8.0"
    }
  }
}

provider "google" {
  project        = var.project
  region         = var.region
  default_labels = local.labels
}

provider "google-beta" {
  project        = var.project
  region         = var.region
  default_labels = local.labels
}
