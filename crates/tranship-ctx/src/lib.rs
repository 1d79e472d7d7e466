//! One numeric policy for a whole model program: eager combinators, a typing pass and its cast ledger.
