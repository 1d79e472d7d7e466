//! A compiled chain on the processor: buffers made once, and a flat list of calls that all threads run together.
//!
//! A step is one piece of work for the pool: every thread walks the same list, does its share of each call, and
//! meets the others only where a call needs what another has written. Nothing is looked up by name or allocated.

use crate::compile::bind::{self, Part};
use crate::compile::{Buffer, Lowered, lower};
use crate::cpu::Cpu;
use crate::ops::quantize::QuantizedRows;
use crate::run::{Angles, BufferPtr, CacheForm, CachePtr, MAX_BLOCKS, Place, Work};
use std::collections::HashMap;
use std::sync::Arc;
use tranship_backend::{
    BackendError, CarriedSpec, Chain, Input, Limits, RopeTable, RowState, Segment, State, Step, Weights,
    check_batch,
};

/// Floats of a cache line: buffers start at whole lines.
const LINE: usize = 16;

/// A cache line, for its alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// A compiled chain.
pub(crate) struct CpuStep {
    cpu: Arc<Cpu>,
    limits: Limits,
    max_rows: usize,
    carried: Vec<CarriedSpec>,
    forms: Vec<CacheForm>,
    parts: Vec<Part>,
    memory: Vec<Line>,
    buffers: Spans,
    /// Buffers of 8-bit blocks, and the width of each.
    blocks: Vec<QuantizedRows>,
    block_widths: Vec<usize>,
    tables: Vec<RopeTable>,
    angles: Vec<Angles>,
    places: Vec<Place>,
    selected: Vec<usize>,
    pointers: Pointers,
}

/// Pointers of the present piece of work; kept for their memory.
#[derive(Default)]
struct Pointers {
    buffers: Vec<BufferPtr>,
    caches: Vec<CachePtr>,
}

// SAFETY: the pointers are of one `run`, which makes them anew; between runs nothing follows them.
unsafe impl Send for Pointers {}

impl CpuStep {
    /// Compiles a chain.
    ///
    /// # Errors
    /// As [`tranship_backend::Backend::compile`].
    pub(crate) fn new(cpu: Arc<Cpu>, chain: &Chain, weights: &dyn Weights) -> Result<CpuStep, BackendError> {
        chain.check()?;
        let mut lowered: HashMap<String, Arc<Lowered>> = HashMap::new();
        let (mut parts, mut tables, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_cache = 0;
        for (typed, bound) in chain.parts.iter().zip(chain.bind(weights)?) {
            let key = typed.canonical();
            let program = match lowered.get(&key) {
                Some(program) => program.clone(),
                None => lowered.entry(key).or_insert(Arc::new(lower(typed)?)).clone(),
            };
            let weights = bind::weights(typed, &program, &bound)?;
            let ropes = bind::ropes(&program, &weights, &mut tables);
            let blocks = bind::blocks(&program, &mut blocks);
            let caches = program.caches;
            parts.push(Part { lowered: program, weights, ropes, blocks, first_cache });
            first_cache += caches;
        }
        if blocks.len() > MAX_BLOCKS {
            let why =
                format!("its widths need {} buffers of blocks, and there are {MAX_BLOCKS}", blocks.len());
            return Err(BackendError::Unsupported { backend: "cpu".into(), op: "cast".into(), why });
        }
        let (buffers, memory) = memory_for(&parts, chain.max_rows)?;
        let carried = chain.carried();
        let forms = carried.iter().map(|c| CacheForm { dtype: c.dtype, cols: c.cols }).collect();
        let angles =
            tables.iter().map(|t: &RopeTable| Angles { pairs: t.pairs(), ..Angles::default() }).collect();
        Ok(CpuStep {
            cpu,
            carried,
            forms,
            parts,
            limits: chain.limits(),
            max_rows: chain.max_rows,
            memory,
            buffers,
            blocks: blocks.iter().map(|_| QuantizedRows::new()).collect(),
            block_widths: blocks,
            tables,
            angles,
            places: Vec::new(),
            selected: Vec::new(),
            pointers: Pointers::default(),
        })
    }
}

/// Whether the last part can be run on the wanted rows alone, straight into the caller's rows. A chain of one part
/// runs on all rows: its input is all there is to select from, and may be tokens.
fn selects(parts: &[Part]) -> bool {
    let [_, .., last] = parts else { return false };
    let lowered = &last.lowered;
    let result = lowered.result;
    lowered.row_wise && result.buffer != 0 && lowered.buffers[result.buffer] == result.width
}

/// Where each buffer starts, and its size, in lines.
type Spans = Vec<(usize, usize)>;

/// Places all buffers, each as wide as the widest program needs it, in one piece of memory.
fn memory_for(parts: &[Part], rows: usize) -> Result<(Spans, Vec<Line>), BackendError> {
    let none =
        || BackendError::Device { backend: "cpu".into(), what: "no memory for the step's buffers".into() };
    let mut widths: Vec<usize> = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let elsewhere = (i + 1 == parts.len() && selects(parts)).then_some(part.lowered.result.buffer);
        for (buffer, width) in part.lowered.buffers.iter().enumerate() {
            widths.resize(widths.len().max(buffer + 1), 0);
            if elsewhere != Some(buffer) {
                widths[buffer] = widths[buffer].max(*width);
            }
        }
        // A result in another buffer is copied to buffer 0, for the next part or the caller.
        if elsewhere.is_none() {
            widths[0] = widths[0].max(part.lowered.result.width);
        }
    }
    let (mut buffers, mut lines) = (Vec::new(), 0usize);
    for width in widths {
        let own = width.checked_mul(rows).ok_or_else(none)?.div_ceil(LINE);
        buffers.push((lines, own));
        lines = lines.checked_add(own).ok_or_else(none)?;
    }
    // Asked for on trial first: `vec!` ends the process when there is no memory.
    Vec::<Line>::new().try_reserve_exact(lines).map_err(|_| none())?;
    Ok((buffers, vec![Line([0.0; LINE]); lines]))
}

impl Step for CpuStep {
    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        Ok(Box::new(RowState::new(self.carried.clone())?))
    }

    fn run(
        &mut self,
        batch: &mut [Segment<'_>],
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        check_batch(&self.limits, batch, input)?;
        RowState::check(batch, &self.carried)?;
        // Rows are run together up to the number that buffers are made for; a long segment is split.
        let (mut segment, mut done, mut first) = (0, 0, 0);
        while segment < batch.len() {
            self.places.clear();
            self.selected.clear();
            self.pointers.caches.clear();
            let mut rows = 0;
            while segment < batch.len() && rows < self.max_rows {
                let Segment { state, position, rows: all, outputs } = &mut batch[segment];
                let taken = (*all - done).min(self.max_rows - rows);
                self.places.push(Place { first: rows, rows: taken, position: *position + done });
                let wanted = outputs.first(*all).max(done)..done + taken;
                self.selected.extend(wanted.map(|row| rows + row - done));
                if let Some(state) = state.as_any().downcast_mut::<RowState>() {
                    let starts = (0..self.carried.len()).map(|t| CachePtr(state.buffer_mut(t).as_mut_ptr()));
                    self.pointers.caches.extend(starts);
                }
                rows += taken;
                done += taken;
                if done == *all {
                    (segment, done) = (segment + 1, 0);
                }
            }
            self.rows(rows, first, input, out);
            first += rows;
        }
        Ok(())
    }
}

impl CpuStep {
    /// Runs rows `first .. first + rows` of the batch's input, whose places and wanted rows have been noted.
    fn rows(&mut self, rows: usize, first: usize, input: Input<'_>, out: &mut Vec<f32>) {
        self.turn();
        let mut tokens: &[u32] = &[];
        match input {
            Input::Tokens(all) => tokens = &all[first..first + rows],
            Input::Rows(all) => {
                let width = self.limits.width_in;
                self.buffer_mut(rows * width).copy_from_slice(&all[first * width..(first + rows) * width]);
            }
        }
        let selects = selects(&self.parts);
        let body = self.parts.len() - usize::from(selects);
        self.work(0..body, rows, tokens, None);
        let width = self.limits.width_out;
        let wanted = std::mem::take(&mut self.selected);
        if !selects {
            for row in &wanted {
                let rows = self.buffer_mut((row + 1) * width);
                out.extend_from_slice(&rows[row * width..]);
            }
        } else if !wanted.is_empty() {
            let inner = self.parts[body - 1].lowered.result.width;
            let x = self.buffer_mut(rows * inner);
            for (to, from) in wanted.iter().enumerate() {
                x.copy_within(from * inner..(from + 1) * inner, to * inner);
            }
            let before = out.len();
            out.resize(before + wanted.len() * width, 0.0);
            let elsewhere = &mut out[before..];
            let redirect = BufferPtr { start: elsewhere.as_mut_ptr(), floats: elsewhere.len() };
            self.work(body..self.parts.len(), wanted.len(), tokens, Some(redirect));
        }
        self.selected = wanted;
    }

    /// The first floats of buffer 0.
    fn buffer_mut(&mut self, floats: usize) -> &mut [f32] {
        let (line, lines) = self.buffers[0];
        let lines = &mut self.memory[line..line + lines];
        // SAFETY: `Line` is `repr(C)` around sixteen floats without padding, so the lines are one array of floats.
        let all =
            unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<f32>(), lines.len() * LINE) };
        &mut all[..floats]
    }

    /// Computes the angles of the rows' positions.
    fn turn(&mut self) {
        for (table, angles) in self.tables.iter().zip(&mut self.angles) {
            let pairs = angles.pairs;
            let rows = self.places.iter().map(|p| p.rows).sum::<usize>();
            angles.cos.resize(angles.cos.len().max(rows * pairs), 0.0);
            angles.sin.resize(angles.sin.len().max(rows * pairs), 0.0);
            for place in &self.places {
                for row in 0..place.rows {
                    let at = (place.first + row) * pairs..(place.first + row + 1) * pairs;
                    table.fill(place.position + row, &mut angles.cos[at.clone()], &mut angles.sin[at]);
                }
            }
        }
    }

    /// Runs parts on all threads, as one piece of work.
    fn work(
        &mut self,
        parts: std::ops::Range<usize>,
        rows: usize,
        tokens: &[u32],
        redirect: Option<BufferPtr>,
    ) {
        for (width, blocks) in self.block_widths.iter().zip(&mut self.blocks) {
            if blocks.rows() != rows || blocks.width() != *width {
                blocks.reshape(rows, *width);
            }
        }
        let blocks = self.blocks.as_mut_ptr();
        let mut blocks_out = [None; MAX_BLOCKS];
        for (i, out) in blocks_out.iter_mut().enumerate().take(self.blocks.len()) {
            // SAFETY: one of the blocks; what is made of it holds pointers to its memory, which threads share as `Work`
            // says, and is gone before this returns.
            *out = Some(unsafe { (*blocks.add(i)).out() });
        }
        let start = self.memory.as_mut_ptr().cast::<f32>();
        self.pointers.buffers.clear();
        let pointers = self.buffers.iter().map(|(line, lines)| BufferPtr {
            // SAFETY: `memory_for` placed each buffer within the memory.
            start: unsafe { start.add(line * LINE) },
            floats: lines * LINE,
        });
        self.pointers.buffers.extend(pointers);
        let parts = &self.parts[parts];
        let result = parts.last().map_or(0, |p| p.lowered.result.buffer);
        let work = Work {
            isa: self.cpu.isa(),
            rows,
            tokens,
            buffers: &self.pointers.buffers,
            redirect: redirect.map(|elsewhere| (Buffer(result), elsewhere)),
            blocks,
            blocks_out,
            angles: &self.angles,
            places: &self.places,
            caches: &self.pointers.caches,
            forms: &self.forms,
        };
        self.cpu.pool().run(|share| parts.iter().for_each(|part| work.part(part, share)));
    }
}
