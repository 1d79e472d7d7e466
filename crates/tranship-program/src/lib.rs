//! Language-model programs as text: parser, verifier, printer, and the state a decode step carries, by dataflow.
