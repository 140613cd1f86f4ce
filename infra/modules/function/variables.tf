variable "build_account" {
  description = "Id of the service account that builds the container."
  type        = string
}

variable "description" {
  description = "What the function does, in a sentence."
  type        = string
}

variable "docker_repository" {
  description = "Id of the repository of the containers."
  type        = string
}

variable "environment" {
  description = "Environment variables."
  type        = map(string)
}

variable "folder" {
  description = "Its folder under functions/."
  type        = string
}

variable "ingress" {
  description = "ALLOW_INTERNAL_ONLY admits Pub/Sub, Cloud Tasks and Cloud Scheduler of the project; ALLOW_ALL anybody with the right."
  type        = string
  default     = "ALLOW_INTERNAL_ONLY"
}

variable "invokers" {
  description = "Who may call it: a name for each, and its IAM member."
  type        = map(string)

  validation {
    condition     = alltrue([for member in values(var.invokers) : !contains(["allUsers", "allAuthenticatedUsers"], member)])
    error_message = "invokers: not everybody; name an account."
  }
}

variable "name" {
  description = "The function's name."
  type        = string
}

variable "pipeline_file" {
  description = "Path of the pipeline file that goes into the archive."
  type        = string
}

variable "project" {
  description = "Id of the project."
  type        = string
}

variable "region" {
  description = "Where it runs."
  type        = string
}

variable "secrets" {
  description = "Environment variables that are secrets: id and pinned version."
  type        = map(object({ secret = string, version = string }))
  default     = {}
}

variable "service_account" {
  description = "E-mail of the account that it runs as."
  type        = string
}

variable "size" {
  description = "Instances, threads and connections."
  type = object({
    concurrency   = number
    cpu           = string
    max_instances = number
    memory        = string
    min_instances = number
    pool_size     = number
  })
}

variable "source_bucket" {
  description = "Name of the bucket of the archives."
  type        = string
}

variable "subnetwork" {
  description = "Id of the subnetwork for Direct VPC egress."
  type        = string
}

variable "timeout" {
  description = "Seconds that one request may take."
  type        = number
}

variable "vpc_connector" {
  description = "Id of the Serverless VPC Access connector; null for Direct VPC egress."
  type        = string
}
