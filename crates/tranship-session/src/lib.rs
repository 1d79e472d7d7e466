//! Running a model: bind weights, step batches of segments, suspend, resume and generate.
