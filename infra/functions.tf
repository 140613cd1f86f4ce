# Every function, from pipeline.yaml and the platform: one module each.

locals {
  invokers = {
    dead_letter = { push = google_service_account.caller["push"].member }
    intake      = { for email in keys(var.callers) : email => "serviceAccount:${email}" }
    reconcile   = { scheduler = google_service_account.caller["scheduler"].member }
    relay       = { scheduler = google_service_account.caller["scheduler"].member }
  }
  step_invokers = {
    for name in ["push", "tasks"] : name => google_service_account.caller[name].member
  }
  descriptions = {
    dead_letter = "Records messages that Pub/Sub gave up."
    intake      = "Accepts operations over HTTP and tells their state."
    reconcile   = "Moves what time has decided: leases, deadlines, look-ups, admission, retention."
    relay       = "Hands over every outbox row that is due and not yet claimed."
  }

  database_environment = {
    for function in concat(keys(local.functions), ["console"]) : function => {
      DATABASE_NAME            = google_sql_database.this.name
      DATABASE_USER            = google_sql_user.this[function].name
      INSTANCE_CONNECTION_NAME = google_sql_database_instance.this.connection_name
    }
  }
  common_environment = {
    GOOGLE_CLOUD_PROJECT = var.project
    STEP_URLS            = jsonencode(local.step_urls)
    TASKS_ACCOUNT        = google_service_account.caller["tasks"].email
    TASKS_LOCATION       = var.region
  }
  push_environment = {
    for function in keys(local.functions) : function => {
      PUSH_ACCOUNT  = join(",", sort([for member in values(lookup(local.invokers, function, local.step_invokers)) : trimprefix(member, "serviceAccount:")]))
      PUSH_AUDIENCE = local.urls[function]
      TOKEN_MODE    = var.token_mode
    } if function != "intake"
  }
  intake_environment = {
    CALLERS         = jsonencode(var.callers)
    INTAKE_AUDIENCE = local.urls["intake"]
    TOKEN_MODE      = var.token_mode
  }
}

module "function" {
  source   = "./modules/function"
  for_each = local.functions

  build_account     = google_service_account.build.id
  description       = lookup(local.descriptions, each.key, "Runs the step${length(try(local.step_functions[each.key].steps, [])) > 1 ? "s" : ""} ${join(", ", [for step in try(local.step_functions[each.key].steps, []) : "${step.type}/${step.step}"])}.")
  docker_repository = google_artifact_registry_repository.this.id
  folder            = each.key
  ingress           = each.key == "intake" ? "ALLOW_ALL" : "ALLOW_INTERNAL_ONLY"
  invokers          = lookup(local.invokers, each.key, local.step_invokers)
  name              = each.value.name
  pipeline_file     = local.pipeline_file
  project           = var.project
  region            = var.region
  secrets           = { for name in lookup(local.function_secrets, each.key, []) : local.secrets[name].variable => local.secret_values[name] }
  service_account   = google_service_account.function[each.key].email
  size              = local.sizes[each.key]
  source_bucket     = google_storage_bucket.source.name
  subnetwork        = google_compute_subnetwork.functions.id
  timeout           = each.value.timeout
  vpc_connector     = one(google_vpc_access_connector.this[*].id)

  environment = merge(
    local.common_environment,
    local.database_environment[each.key],
    each.key == "intake" ? local.intake_environment : local.push_environment[each.key],
    contains(keys(local.step_functions), each.key) ? local.step_environment[each.key] : {},
  )

  depends_on = [
    google_cloud_run_v2_job.migrate, # the new code never meets the old schema
    google_project_iam_member.function,
    google_secret_manager_secret_iam_member.function,
  ]
}
