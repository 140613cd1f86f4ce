# Everything that follows from pipeline.yaml and the variables, computed once.

locals {
  pipeline_file = startswith(var.pipeline_file, "/") ? var.pipeline_file : "${path.module}/${var.pipeline_file}"
  pipeline      = yamldecode(file(local.pipeline_file))

  # Every duration of the file in seconds (docs/pipeline.md has the spelling).
  durations = distinct(concat(
    flatten([for step in local.steps : [step.timeout, step.lease]]),
    values(try(local.pipeline.retention, {})),
  ))
  seconds_of = { d = 86400, h = 3600, m = 60, s = 1, ms = 0.001 }
  seconds = {
    for text in local.durations : text => sum([
      for part in regexall("([0-9]+)(ms|d|h|m|s)", text) : tonumber(part[0]) * local.seconds_of[part[1]]
    ])
  }

  # One object a step, with the defaults filled in.
  steps = flatten([
    for type, operation in local.pipeline.operations : [
      for name, step in operation.steps : merge(
        local.pipeline.defaults, { needs = [], providers = [], pacing = null }, step, { type = type, step = name }
      )
    ]
  ])

  # One object a step function: steps that share one agree in transport, timeout and pacing (Python checks it too).
  step_functions = {
    for function in distinct(local.steps[*].function) : function => {
      name      = replace(function, "_", "-")
      steps     = [for step in local.steps : step if step.function == function]
      transport = [for step in local.steps : step.transport if step.function == function][0]
      pacing    = [for step in local.steps : step.pacing if step.function == function][0]
      providers = distinct(flatten([for step in local.steps : step.providers if step.function == function]))
      timeout   = ceil(max([for step in local.steps : local.seconds[step.timeout] if step.function == function]...))
      # Whom it may have to start: itself (a retry), the functions of the steps that need one of its steps, and, when
      # its operation ends, the first steps of those that this one held up (docs/decisions/0009).
      followers = distinct(concat([function], local.first_functions, [
        for step in local.steps : step.function
        if length([
          for own in local.steps : own
          if own.function == function && own.type == step.type && contains(step.needs, own.step)
        ]) > 0
      ]))
    }
  }
  first_functions = distinct([for step in local.steps : step.function if length(step.needs) == 0])
  paced_functions = { for function, it in local.step_functions : function => it if it.transport == "tasks" }

  # The functions of the platform, beside those of the steps.
  platform_functions = {
    for function in ["dead_letter", "intake", "reconcile", "relay"] :
    function => { name = replace(function, "_", "-"), timeout = var.platform_timeouts[function] }
  }
  functions = merge(
    { for function, it in local.platform_functions : function => it },
    { for function, it in local.step_functions : function => { name = it.name, timeout = it.timeout } },
  )
  sizes = {
    for function in concat(keys(local.functions), ["console"]) : function => merge(
      var.function_defaults,
      { for key, value in try(var.functions[function], {}) : key => value if value != null },
    )
  }

  # Known before anything exists, so that a function can be told its own address and the others'.
  urls = {
    for function, it in merge(local.functions, { console = { name = "console" } }) :
    function => "https://${it.name}-${data.google_project.this.number}.${var.region}.run.app"
  }
  step_urls = { for function in keys(local.step_functions) : function => local.urls[function] }

  connections = 2 * sum([for size in values(local.sizes) : size.max_instances * size.pool_size]) + 20

  labels = { app = "echoproof" }
}

data "google_project" "this" {
  project_id = var.project
}
