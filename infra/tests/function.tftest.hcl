# The module of one function refuses what it cannot hold.

mock_provider "archive" {}
mock_provider "google" {}

variables {
  build_account     = "projects/p/serviceAccounts/build"
  description       = "A step."
  docker_repository = "projects/p/locations/l/repositories/r"
  environment       = {}
  folder            = "invoice_record"
  invokers          = { push = "serviceAccount:push@p.iam.gserviceaccount.com" }
  name              = "invoice-record"
  pipeline_file     = "tests/pipelines/holds.yaml"
  project           = "my-project"
  region            = "europe-west1"
  service_account   = "step@p.iam.gserviceaccount.com"
  size              = { concurrency = 4, cpu = "1", max_instances = 2, memory = "512Mi", min_instances = 0, pool_size = 2 }
  source_bucket     = "bucket"
  subnetwork        = "projects/p/regions/l/subnetworks/s"
  timeout           = 40
  vpc_connector     = null
}

run "holds" {
  command = plan
  module {
    source = "./modules/function"
  }
  assert {
    condition     = google_cloudfunctions2_function.this.service_config[0].environment_variables["THREADS"] == "4"
    error_message = "An instance has as many threads as it takes requests at once."
  }
}

run "pool_over_threads" {
  command = plan
  module {
    source = "./modules/function"
  }
  variables {
    size = { concurrency = 4, cpu = "1", max_instances = 2, memory = "512Mi", min_instances = 0, pool_size = 5 }
  }
  expect_failures = [google_cloudfunctions2_function.this]
}

run "threads_on_part_of_a_cpu" {
  command = plan
  module {
    source = "./modules/function"
  }
  variables {
    size = { concurrency = 2, cpu = "0.5", max_instances = 2, memory = "512Mi", min_instances = 0, pool_size = 1 }
  }
  expect_failures = [google_cloudfunctions2_function.this]
}

run "no_maximum" {
  command = plan
  module {
    source = "./modules/function"
  }
  variables {
    size = { concurrency = 4, cpu = "1", max_instances = 0, memory = "512Mi", min_instances = 0, pool_size = 2 }
  }
  expect_failures = [google_cloudfunctions2_function.this]
}

run "more_kept_warm_than_allowed" {
  command = plan
  module {
    source = "./modules/function"
  }
  variables {
    size = { concurrency = 4, cpu = "1", max_instances = 2, memory = "512Mi", min_instances = 3, pool_size = 2 }
  }
  expect_failures = [google_cloudfunctions2_function.this]
}

run "everybody" {
  command = plan
  module {
    source = "./modules/function"
  }
  variables {
    invokers = { all = "allUsers" }
  }
  expect_failures = [var.invokers]
}

run "every_account" {
  command = plan
  module {
    source = "./modules/function"
  }
  variables {
    invokers = { all = "allAuthenticatedUsers" }
  }
  expect_failures = [var.invokers]
}
