variable "alert_emails" {
  description = "Who is told when an alert fires; empty: alerts are only shown."
  type        = list(string)
  default     = []
}

variable "bucket_location" {
  description = "Location of the buckets; the region unless given (a dual-region such as EUR4 survives the loss of one)."
  type        = string
  default     = null
}

variable "callers" {
  description = "Service accounts that may ask for operations, each with its tenants (* is every one)."
  type        = map(list(string))

  validation {
    condition     = alltrue([for email in keys(var.callers) : can(regex("^[a-z0-9._+-]+@[a-z0-9.-]+$", email))])
    error_message = "callers: each key is the e-mail of a service account, in lower case, such as app@project.iam.gserviceaccount.com."
  }
  validation {
    condition     = alltrue([for tenants in values(var.callers) : length(tenants) > 0])
    error_message = "callers: name at least one tenant for each caller."
  }
}

variable "console" {
  description = "Who may use the console, behind Identity-Aware Proxy: viewers look, operators decide too (e-mails of users)."
  type = object({
    operators = optional(list(string), [])
    viewers   = optional(list(string), [])
  })

  validation {
    condition     = length(concat(var.console.operators, var.console.viewers)) > 0
    error_message = "console: name an operator or a viewer; the console does not start for nobody."
  }
  validation {
    condition     = alltrue([for email in concat(var.console.operators, var.console.viewers) : can(regex("^[^@\\s,]+@[^@\\s,]+$", email))])
    error_message = "console: operators and viewers are e-mail addresses."
  }
}

variable "database" {
  description = "The Cloud SQL instance."
  type = object({
    availability        = optional(string, "REGIONAL")
    backup_retention    = optional(number, 14) # daily backups
    deletion_protection = optional(bool, true)
    deny_maintenance = optional(object({ # no maintenance from day to day, month-day, 90 days at most
      end   = optional(string, "01-04")
      start = optional(string, "12-18")
    }), {})
    disk_gb            = optional(number, 20)
    log_retention_days = optional(number, 7) # how far back a point-in-time restore goes
    max_connections    = optional(number, 400)
    name               = optional(string, "echoproof") # a name stays taken for a week after its instance is deleted
    tier               = optional(string, "db-custom-2-8192")
  })
  default = {}

  validation {
    condition     = contains(["REGIONAL", "ZONAL"], var.database.availability)
    error_message = "database.availability: REGIONAL (fails over to another zone) or ZONAL."
  }
  validation {
    condition     = alltrue([for day in values(var.database.deny_maintenance) : can(regex("^[01][0-9]-[0-3][0-9]$", day))])
    error_message = "database.deny_maintenance: start and end are MM-DD, such as 12-18."
  }
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,79}$", var.database.name))
    error_message = "database.name: lower-case letters, digits and hyphens, a letter first, 80 at most."
  }
  validation {
    condition     = var.database.log_retention_days >= 1 && var.database.log_retention_days <= 7
    error_message = "database.log_retention_days: 1 to 7 with the ENTERPRISE edition."
  }
}

variable "direct_vpc_egress" {
  description = "Reach the database by Direct VPC egress instead of a Serverless VPC Access connector: cheaper, but an instance's start may take a minute."
  type        = bool
  default     = false
}

variable "function_defaults" {
  description = "What every function has unless var.functions says otherwise. Threads are the concurrency."
  type = object({
    concurrency   = optional(number, 4)
    cpu           = optional(string, "1")
    max_instances = optional(number, 5)
    memory        = optional(string, "512Mi")
    min_instances = optional(number, 0)
    pool_size     = optional(number, 2)
  })
  default = {}
}

variable "functions" {
  description = "Differences of single functions from function_defaults, by folder name (intake, relay, invoice_collect, …)."
  type = map(object({
    concurrency   = optional(number)
    cpu           = optional(string)
    max_instances = optional(number)
    memory        = optional(string)
    min_instances = optional(number)
    pool_size     = optional(number)
  }))
  default = {}
}

variable "functions_range" {
  description = "Addresses of the functions with Direct VPC egress, two an instance: /26 or wider."
  type        = string
  default     = "10.8.0.0/24"

  validation {
    condition     = can(cidrnetmask(var.functions_range)) && can(regex("/(8|9|1[0-9]|2[0-6])$", var.functions_range))
    error_message = "functions_range: an IPv4 range such as 10.8.0.0/24, /26 or wider."
  }
}

variable "mail" {
  description = "The mail server of the steps that send mail; null without one. Its URL is the secret smtp-url. With sent_log_url an unknown outcome is looked up there, without it a person decides."
  type = object({
    from           = string
    sent_log_delay = optional(string)
    sent_log_url   = optional(string)
  })
  default = null
}

variable "objectives" {
  description = "Share of good events in 28 days: requests to intake, minutes in which nothing due waits over a minute, attempts that do not end in a review."
  type = object({
    acceptance = optional(number, 0.999)
    completion = optional(number, 0.999)
    start      = optional(number, 0.99)
  })
  default = {}

  validation {
    condition     = alltrue([for objective in values(var.objectives) : objective >= 0.9 && objective < 1])
    error_message = "objectives: each is a share from 0.9 to below 1, such as 0.999."
  }
}

variable "payments_visibility" {
  description = "Longest delay from a client's timeout to a payment that shows at the provider; a duration like 60s."
  type        = string
  default     = "60s"
}

variable "pipeline_file" {
  description = "The pipeline file, relative to this folder unless it begins with a slash."
  type        = string
  default     = "../pipeline.yaml"
}

variable "platform_timeouts" {
  description = "Seconds that one call of a function of the platform may take; relay and reconcile work 45 s of theirs at most."
  type = object({
    dead_letter = optional(number, 60)
    intake      = optional(number, 60)
    reconcile   = optional(number, 120)
    relay       = optional(number, 120)
  })
  default = {}

  validation {
    condition     = alltrue([for seconds in values(var.platform_timeouts) : seconds >= 30 && seconds <= 3600])
    error_message = "platform_timeouts: 30 to 3600 seconds each."
  }
  validation {
    condition     = var.platform_timeouts.dead_letter <= 570
    error_message = "platform_timeouts.dead_letter: 570 at most, because Pub/Sub waits 600 s at most, and 30 s are to spare."
  }
}

variable "prefix" {
  description = "Begins the names of service accounts and buckets."
  type        = string
  default     = "ep"

  validation {
    condition     = can(regex("^[a-z][a-z0-9]{0,3}$", var.prefix))
    error_message = "prefix: one to four lower-case letters and digits (a service account's id has at most 30 characters)."
  }
}

variable "project" {
  description = "Id of the Google Cloud project."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project: the id, not the name or the number, of a project."
  }
}

variable "region" {
  description = "Where everything runs."
  type        = string
  default     = "europe-west1"
}

variable "schedules" {
  description = "When relay and reconcile run (cron; Cloud Scheduler's floor is a minute)."
  type = object({
    reconcile = optional(string, "* * * * *")
    relay     = optional(string, "* * * * *")
  })
  default = {}

  validation {
    condition     = alltrue([for schedule in values(var.schedules) : length(regexall("\\S+", schedule)) == 5])
    error_message = "schedules: five fields of cron, such as * * * * *."
  }
}

variable "secret_versions" {
  description = "Version of each secret that the functions read; pinned, because a running instance keeps what it started with."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for version in values(var.secret_versions) : can(regex("^[1-9][0-9]*$", version))])
    error_message = "secret_versions: numbers; latest would change under running instances."
  }
}

variable "token_mode" {
  description = "How internal functions check tokens: signature, or platform where Cloud Run has verified and removed it."
  type        = string
  default     = "signature"

  validation {
    condition     = contains(["platform", "signature"], var.token_mode)
    error_message = "token_mode: signature or platform."
  }
}

variable "webhook_url" {
  description = "Where the announce step sends its webhooks."
  type        = string
  default     = null
}
