# Keys of providers. Terraform makes the secrets and who may read them; their values are added by hand (docs/deploy.md).

locals {
  # Which provider of pipeline.yaml needs which secrets, and the variable that the code reads.
  secrets = {
    payments-key   = { provider = "payments", variable = "PAYMENTS_KEY" }
    smtp-url       = { provider = "email", variable = "SMTP_URL" }
    webhook-secret = { provider = "webhook", variable = "WEBHOOK_SECRET" }
    console-secret = { provider = null, variable = "CONSOLE_SECRET" }
  }
  function_secrets = {
    for function, it in local.step_functions : function => [
      for name, secret in local.secrets : name if secret.provider != null && contains(it.providers, coalesce(secret.provider, "none"))
    ]
  }
  secret_values = {
    for name in keys(local.secrets) : name => {
      secret  = google_secret_manager_secret.this[name].secret_id
      version = lookup(var.secret_versions, name, "1")
    }
  }

  # What else a provider needs, beside its secrets.
  provider_environment = {
    email = merge(
      { ARTIFACTS_BUCKET = google_storage_bucket.artifacts.name }, # for attachments
      { for name, value in coalesce(var.mail, {}) : name == "from" ? "MAIL_FROM" : upper(name) => value if value != null },
    )
    payments = { PAYMENTS_VISIBILITY = var.payments_visibility }
    storage  = { ARTIFACTS_BUCKET = google_storage_bucket.artifacts.name }
    webhook  = { WEBHOOK_URL = coalesce(var.webhook_url, "unset") } # checks.tf refuses the latter
  }
  step_environment = {
    for function, it in local.step_functions : function => merge({}, [
      for provider in it.providers : lookup(local.provider_environment, provider, {})
    ]...)
  }
}

resource "google_secret_manager_secret" "this" {
  for_each = local.secrets

  secret_id  = "echoproof-${each.key}"
  depends_on = [google_project_service.this]

  replication {
    user_managed {
      replicas {
        location = var.region
      }
    }
  }
}

resource "google_secret_manager_secret_iam_member" "function" {
  for_each = merge(
    { "console/console-secret" = { function = "console", secret = "console-secret" } },
    merge([
      for function, names in local.function_secrets : { for name in names : "${function}/${name}" => { function = function, secret = name } }
    ]...),
  )

  secret_id = google_secret_manager_secret.this[each.value.secret].id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.function[each.value.function].member
}
