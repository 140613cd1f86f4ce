# Each invariant refuses its violation, before anything is made.

mock_provider "archive" {}

mock_provider "google" {
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
  mock_resource "google_service_account" {
    defaults = {
      email  = "mock@my-project.iam.gserviceaccount.com"
      member = "serviceAccount:mock@my-project.iam.gserviceaccount.com"
      name   = "projects/my-project/serviceAccounts/mock@my-project.iam.gserviceaccount.com"
      id     = "projects/my-project/serviceAccounts/mock@my-project.iam.gserviceaccount.com"
    }
  }
  mock_resource "google_cloudfunctions2_function" {
    defaults = { service_config = [{ uri = "https://mock.run.app" }] }
  }
}

mock_provider "google-beta" {
  mock_resource "google_project_service_identity" {
    defaults = { member = "serviceAccount:agent@gcp-sa-mock.iam.gserviceaccount.com" }
  }
}

variables {
  callers = { "app@my-project.iam.gserviceaccount.com" = ["shop"] }
  project = "my-project"
}

run "holds" {
  command = plan
}

run "connection_budget" {
  command = plan
  variables {
    database = { max_connections = 60 }
  }
  expect_failures = [google_sql_database_instance.this]
}

run "budget_counts_each_function" {
  command = plan
  variables {
    functions = { intake = { max_instances = 200 } }
  }
  expect_failures = [google_sql_database_instance.this]
}

run "bad_callers" {
  command = plan
  variables {
    callers = { "Not An Email" = ["shop"] }
  }
  expect_failures = [var.callers]
}

run "callers_without_a_tenant" {
  command = plan
  variables {
    callers = { "app@my-project.iam.gserviceaccount.com" = [] }
  }
  expect_failures = [var.callers]
}

run "bad_prefix" {
  command = plan
  variables {
    prefix = "much-too-long"
  }
  expect_failures = [var.prefix]
}

run "bad_token_mode" {
  command = plan
  variables {
    token_mode = "none"
  }
  expect_failures = [var.token_mode]
}

run "bad_availability" {
  command = plan
  variables {
    database = { availability = "GLOBAL" }
  }
  expect_failures = [var.database]
}

run "bad_log_retention" {
  command = plan
  variables {
    database = { log_retention_days = 30 }
  }
  expect_failures = [var.database]
}
