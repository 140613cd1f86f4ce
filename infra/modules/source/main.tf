# The archive of one function, named by its content, in the bucket that functions are built from.

locals {
  root = "${path.module}/../../.."
  # main.py at the archive's root, with shared/ and pipeline.yaml beside it, works without any setting.
  shared = { for path in fileset("${local.root}/shared", "**") : "shared/${path}" => "${local.root}/shared/${path}"
    if !can(regex("(__pycache__|\\.pyc$)", path))
  }
  own = { for path in fileset("${local.root}/functions/${var.folder}", "**") :
    path => "${local.root}/functions/${var.folder}/${path}" if !can(regex("(__pycache__|\\.pyc$)", path))
  }
  more = merge([
    for folder in var.with : { for path in fileset("${local.root}/${folder}", "**") : "${folder}/${path}" => "${local.root}/${folder}/${path}" }
  ]...)
  files = merge(local.shared, local.own, local.more, {
    "pipeline.yaml"    = var.pipeline_file
    "requirements.txt" = "${local.root}/infra/requirements.txt"
  })
  # The archive's name follows from what is in it, so a change, and nothing else, deploys.
  content = sha256(jsonencode({ for name, path in local.files : name => filesha256(path) }))
}

data "archive_file" "this" {
  type        = "zip"
  output_path = "${path.root}/.build/${var.name}-${substr(local.content, 0, 16)}.zip"

  dynamic "source" {
    for_each = local.files
    content {
      filename = source.key
      content  = file(source.value)
    }
  }
}

resource "google_storage_bucket_object" "this" {
  name   = "functions/${var.name}-${substr(local.content, 0, 16)}.zip"
  bucket = var.source_bucket
  source = data.archive_file.this.output_path
}
