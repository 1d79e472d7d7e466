//! One language model across unlike chips: prefill here, decode there.
