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
  callers       = { "app@my-project.iam.gserviceaccount.com" = ["shop"] }
  console       = { viewers = ["ada@example.com"] }
  pipeline_file = "tests/pipelines/holds.yaml"
  project       = "my-project"
}

run "holds" {
  command = plan
}

run "longest_timeouts" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/longest.yaml"
  }
}

run "shortest_retention" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/shortest_retention.yaml"
  }
}

run "long_push" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/long_push.yaml"
  }
  expect_failures = [google_pubsub_subscription.step]
}

run "long_task" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/long_task.yaml"
  }
  expect_failures = [google_cloud_tasks_queue.paced]
}

run "short_lease" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/short_lease.yaml"
  }
  expect_failures = [terraform_data.pipeline]
}

run "short_retention" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/short_retention.yaml"
  }
  expect_failures = [terraform_data.pipeline]
}

run "no_folder" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/no_folder.yaml"
  }
  expect_failures = [terraform_data.pipeline]
}

run "long_name" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/long_name.yaml"
  }
  expect_failures = [terraform_data.pipeline]
}

run "taken_name" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/taken_name.yaml"
  }
  expect_failures = [terraform_data.pipeline]
}

run "disagreeing" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/disagreeing.yaml"
  }
  expect_failures = [terraform_data.pipeline]
}

run "paced_push" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/paced_push.yaml"
  }
  expect_failures = [terraform_data.pipeline]
}

run "mail" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/mail.yaml"
  }
  expect_failures = [terraform_data.pipeline]
}

run "webhook" {
  command = plan
  variables {
    pipeline_file = "tests/pipelines/webhook.yaml"
  }
  expect_failures = [terraform_data.pipeline]
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

run "addresses" {
  command = plan
  variables {
    direct_vpc_egress = true
    function_defaults = { max_instances = 6 }
    functions_range   = "10.8.0.0/26"
  }
  expect_failures = [google_compute_subnetwork.functions]
}

run "scheduler_deadline" {
  command = plan
  variables {
    platform_timeouts = { relay = 1771 }
  }
  expect_failures = [google_cloud_scheduler_job.this]
}

run "size_of_no_function" {
  command = plan
  variables {
    functions = { invoice_typo = { max_instances = 1 } }
  }
  expect_failures = [terraform_data.pipeline]
}

run "bad_callers" {
  command = plan
  variables {
    callers = { "Not An Email" = ["shop"] }
  }
  expect_failures = [var.callers]
}

run "bad_callers_everybody" {
  command = plan
  variables {
    callers = { "allUsers" = ["shop"] }
  }
  expect_failures = [var.callers]
}

run "bad_callers_without_a_tenant" {
  command = plan
  variables {
    callers = { "app@my-project.iam.gserviceaccount.com" = [] }
  }
  expect_failures = [var.callers]
}

run "bad_console_for_nobody" {
  command = plan
  variables {
    console = {}
  }
  expect_failures = [var.console]
}

run "bad_console_without_an_address" {
  command = plan
  variables {
    console = { viewers = ["Ada"] }
  }
  expect_failures = [var.console]
}

run "bad_database_availability" {
  command = plan
  variables {
    database = { availability = "GLOBAL" }
  }
  expect_failures = [var.database]
}

run "bad_database_log_retention" {
  command = plan
  variables {
    database = { log_retention_days = 30 }
  }
  expect_failures = [var.database]
}

run "bad_database_name" {
  command = plan
  variables {
    database = { name = "Echo_Proof" }
  }
  expect_failures = [var.database]
}

run "bad_database_deny_maintenance" {
  command = plan
  variables {
    database = { deny_maintenance = { start = "Christmas" } }
  }
  expect_failures = [var.database]
}

run "bad_functions_range" {
  command = plan
  variables {
    functions_range = "10.8.0.0/27"
  }
  expect_failures = [var.functions_range]
}

run "bad_objectives" {
  command = plan
  variables {
    objectives = { start = 1 }
  }
  expect_failures = [var.objectives]
}

run "bad_platform_timeouts" {
  command = plan
  variables {
    platform_timeouts = { intake = 5 }
  }
  expect_failures = [var.platform_timeouts]
}

run "bad_platform_timeouts_push" {
  command = plan
  variables {
    platform_timeouts = { dead_letter = 571 }
  }
  expect_failures = [var.platform_timeouts]
}

run "bad_prefix" {
  command = plan
  variables {
    prefix = "much-too-long"
  }
  expect_failures = [var.prefix]
}

run "bad_project" {
  command = plan
  variables {
    project = "My Project"
  }
  expect_failures = [var.project]
}

run "bad_schedules" {
  command = plan
  variables {
    schedules = { relay = "every minute" }
  }
  expect_failures = [var.schedules]
}

run "bad_secret_versions" {
  command = plan
  variables {
    secret_versions = { payments-key = "latest" }
  }
  expect_failures = [var.secret_versions]
}

run "bad_token_mode" {
  command = plan
  variables {
    token_mode = "none"
  }
  expect_failures = [var.token_mode]
}
