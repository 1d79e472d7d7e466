//! The page on state says what is derived.

use std::path::Path;
use xtask::state;

#[test]
fn the_page_on_state_is_what_is_derived() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (written, derived) = (state::written(&root).unwrap(), state::figures(&root).unwrap());
    assert!(derived.contains("| DeepSeek-V3 |"), "{derived}");
    assert_eq!(written, derived, "run `cargo xtask state --write`");
}
