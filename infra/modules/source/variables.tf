variable "folder" {
  description = "The function's folder under functions/."
  type        = string
}

variable "name" {
  description = "The function's name."
  type        = string
}

variable "pipeline_file" {
  description = "Path of the pipeline file that goes into the archive."
  type        = string
}

variable "source_bucket" {
  description = "Name of the bucket of the archives."
  type        = string
}

variable "with" {
  description = "Further folders of the repository that go into the archive."
  type        = list(string)
  default     = []
}
