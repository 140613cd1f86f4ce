# What must hold between the pipeline file, the variables and Google's limits before anything is made; what concerns one
# resource is checked there. `shared/pipeline_file.py` refuses the same files; here an apply stops before it begins.

locals {
  messages_kept = 7 * 86400  # seconds; the subscriptions' message_retention_duration
  replay_window = 30 * 86400 # how late a task or a caller's own replay may come

  short_leases = [
    for step in local.steps : "${step.type}/${step.step} (timeout ${step.timeout}, lease ${step.lease})"
    if local.seconds[step.lease] <= local.seconds[step.timeout]
  ]
  long_names      = [for function in keys(local.step_functions) : function if !can(regex("^[a-z][a-z0-9_]{2,24}$", function))]
  taken_names     = [for function in keys(local.step_functions) : function if contains(concat(keys(local.platform_functions), ["console", "delayed", "migrate"]), function)]
  missing_folders = [for function in keys(local.step_functions) : function if !fileexists("${path.module}/../functions/${function}/main.py")]
  disagreeing = [
    for function, it in local.step_functions : function
    if length(distinct([for step in it.steps : jsonencode([step.transport, step.timeout, step.pacing])])) > 1
  ]
  paced_pushes = [for step in local.steps : "${step.type}/${step.step}" if step.pacing != null && step.transport != "tasks"]
  unknown_sizes = [
    for function in keys(var.functions) : function if !contains(concat(keys(local.functions), ["console"]), function)
  ]
  providers_used = distinct(flatten(local.steps[*].providers))
}

resource "terraform_data" "pipeline" {
  lifecycle {
    precondition {
      condition     = length(local.short_leases) == 0
      error_message = "A lease must be longer than its step's timeout, or reconcile takes a running step away: lengthen lease in pipeline.yaml of ${join(", ", local.short_leases)}."
    }
    precondition {
      condition = try(
        local.seconds[local.pipeline.retention.identities] >= local.seconds[local.pipeline.retention.operations] + local.messages_kept + local.replay_window,
        !can(local.pipeline.retention),
      )
      error_message = "retention.identities must be at least 37 days longer than retention.operations (messages live for 7 days, a replay comes up to 30 days late), or a late duplicate becomes a new operation: lengthen retention.identities in pipeline.yaml."
    }
    precondition {
      condition     = length(local.long_names) == 0
      error_message = "A function's name has 3 to 25 lower-case letters, digits and underscores (a service account's id has at most 30 characters): rename ${join(", ", local.long_names)}."
    }
    precondition {
      condition     = length(local.taken_names) == 0
      error_message = "The platform has functions or queues of this name already: rename ${join(", ", local.taken_names)}."
    }
    precondition {
      condition     = length(local.missing_folders) == 0
      error_message = "pipeline.yaml names functions that have no folder: make ${join(", ", [for function in local.missing_folders : "functions/${function}/main.py"])}."
    }
    precondition {
      condition     = length(local.disagreeing) == 0
      error_message = "Steps that share a function share its subscription and queue: give the steps of ${join(", ", local.disagreeing)} the same transport, timeout and pacing in pipeline.yaml."
    }
    precondition {
      condition     = length(local.paced_pushes) == 0
      error_message = "A push cannot be paced: use transport: tasks in pipeline.yaml for ${join(", ", local.paced_pushes)}."
    }
    precondition {
      condition     = length(local.unknown_sizes) == 0
      error_message = "There is no function ${join(", ", local.unknown_sizes)}: correct the keys of functions (folder names such as invoice_collect)."
    }
    precondition {
      condition     = var.mail != null || !contains(local.providers_used, "email")
      error_message = "Steps send mail: set mail, such as { from = \"billing@example.com\" }."
    }
    precondition {
      condition     = var.webhook_url != null || !contains(local.providers_used, "webhook")
      error_message = "Steps send webhooks: set webhook_url."
    }
  }
}
