//! The policy on tensors, one at a time. A cast happens only where types differ; otherwise nothing is copied.

use crate::{ComputeCtx, CtxError};
use std::borrow::Cow;
use tranship_dtype::{DType, NoJoin};
use tranship_tensor::{Tensor, TensorError};

/// The smallest type that holds all values of both; see [`DType::join`].
///
/// # Errors
/// [`NoJoin`] when there is none.
pub fn promote(a: DType, b: DType) -> Result<DType, NoJoin> {
    a.join(b)
}

/// Both tensors at their join; only the one below it is cast.
///
/// # Errors
/// [`CtxError::NoJoin`] when there is no join.
pub fn promoted<'t>(a: &'t Tensor, b: &'t Tensor) -> Result<(Cow<'t, Tensor>, Cow<'t, Tensor>), CtxError> {
    let dtype = promote(a.dtype(), b.dtype())?;
    Ok((cast_if(a, dtype)?, cast_if(b, dtype)?))
}

/// The tensor at `dtype`; the tensor itself if it is there already.
///
/// # Errors
/// [`TensorError`] when a value has no counterpart in `dtype`.
pub fn cast_if(t: &Tensor, dtype: DType) -> Result<Cow<'_, Tensor>, TensorError> {
    if t.dtype() == dtype { Ok(Cow::Borrowed(t)) } else { t.cast(dtype).map(Cow::Owned) }
}

impl ComputeCtx {
    /// Runs `f` on `t` lifted to the join of its type with the accumulation type, and gives the result back at
    /// `t`'s type.
    ///
    /// Nothing is cast when `t` is there already, an F64 tensor is not narrowed to an F32 accumulator, and index
    /// tensors reach `f` as they are. A block encoding is a form of storage, so its result stays at the lifted
    /// type.
    ///
    /// # Errors
    /// What `f` or a cast says.
    pub fn precise(
        &self,
        t: &Tensor,
        f: impl FnOnce(&Tensor) -> Result<Tensor, TensorError>,
    ) -> Result<Tensor, CtxError> {
        if !t.dtype().is_real() {
            return Ok(f(t)?);
        }
        let lifted = cast_if(t, t.dtype().join(self.accum)?)?;
        let result = f(&lifted)?;
        if matches!(t.dtype(), DType::Block(_)) || result.dtype() == t.dtype() {
            return Ok(result);
        }
        Ok(result.cast(t.dtype())?)
    }

    /// The tensor at the compute type; an index tensor as it is.
    ///
    /// # Errors
    /// What the cast says.
    pub fn to_compute<'t>(&self, t: &'t Tensor) -> Result<Cow<'t, Tensor>, CtxError> {
        if t.dtype().is_real() { Ok(cast_if(t, self.compute)?) } else { Ok(Cow::Borrowed(t)) }
    }

    /// The tensor at the type of key/value caches; an index tensor as it is. Values are converted, and a finite
    /// value stays finite: past the type's range it becomes the largest finite value, since one infinite key
    /// would make every later score NaN.
    ///
    /// # Errors
    /// What the cast says.
    pub fn to_kv<'t>(&self, t: &'t Tensor) -> Result<Cow<'t, Tensor>, CtxError> {
        if !t.dtype().is_real() || t.dtype() == self.kv {
            return Ok(Cow::Borrowed(t));
        }
        let cast = t.cast(self.kv)?;
        let Some(limit) = largest(self.kv) else { return Ok(Cow::Owned(cast)) };
        let mut values = cast.to_f32()?;
        let wide = t.cast(DType::F64)?;
        let mut saturated = false;
        for (value, source) in values.iter_mut().zip(wide.as_slice::<f64>()?) {
            if value.is_infinite() && source.is_finite() {
                *value = limit.copysign(*value);
                saturated = true;
            }
        }
        if !saturated {
            return Ok(Cow::Owned(cast));
        }
        Ok(Cow::Owned(Tensor::encoded(self.kv, t.shape(), &values)?))
    }
}

/// The largest finite value of a float type that can overflow; `None` of F64.
fn largest(dtype: DType) -> Option<f32> {
    match dtype {
        DType::F16 => Some(65_504.0),
        DType::BF16 => Some(3.389_531_4e38),
        DType::F8E4M3 => Some(448.0),
        DType::F8E5M2 => Some(57_344.0),
        DType::F32 => Some(f32::MAX),
        _ => None,
    }
}
