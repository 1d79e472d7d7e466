//! One layer, typed under each preset, as people read it. `INSTA_UPDATE=always` writes what is found; the
//! difference is then for a person to read.

mod common;

use common::{LAYER, policy, typed};
use tranship_dtype::DType;

#[test]
fn a_layer_under_each_preset() {
    for (name, matrix) in [("parity", DType::Q4_0), ("serving", DType::BF16), ("quantized", DType::Q4_0)] {
        insta::assert_snapshot!(format!("layer_{name}"), typed(LAYER, &policy(name), matrix));
    }
}
