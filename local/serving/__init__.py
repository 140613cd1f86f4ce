"""What the embedded servers share: a journal, gRPC handlers, HTTP calls, a thread or process to run in."""
