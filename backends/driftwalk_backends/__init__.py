"""One file per runtime; all that knows torch, transformers and ONNX Runtime."""
