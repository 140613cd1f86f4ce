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
  default = {}
}

variable "database" {
  description = "The Cloud SQL instance."
  type = object({
    availability        = optional(string, "REGIONAL")
    backup_retention    = optional(number, 14) # daily backups
    deletion_protection = optional(bool, true)
    disk_gb             = optional(number, 20)
    log_retention_days  = optional(number, 7) # how far back a point-in-time restore goes
    max_connections     = optional(number, 400)
    tier                = optional(string, "db-custom-2-8192")
  })
  default = {}

  validation {
    condition     = contains(["REGIONAL", "ZONAL"], var.database.availability)
    error_message = "database.availability: REGIONAL (fails over to another zone) or ZONAL."
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

variable "mail" {
  description = "The mail server of the steps that send mail; null without one. The URL itself is the secret smtp-url."
  type = object({
    from = string
  })
  default = null
}

variable "payments_visibility" {
  description = "Longest delay from a client's timeout to a payment that shows at the provider; a duration like 60s."
  type        = string
  default     = "60s"
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
}

variable "secret_versions" {
  description = "Version of each secret that the functions read; pinned, because a running instance keeps what it started with."
  type        = map(string)
  default     = {}
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
