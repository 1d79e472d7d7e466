//! A compiled chain on the processor: buffers made once, and a flat list of calls that all threads run together.
//!
//! A step is one piece of work for the pool: every thread walks the same list, does its share of each call, and
//! meets the others only where a call needs what another has written. Nothing is looked up by name or allocated.

use crate::compile::bind::{self, Part};
use crate::compile::{BlockRows, Buffer, Call, Lowered, Past, Room, lower};
use crate::cpu::Cpu;
use crate::ops::Out;
use crate::ops::attend_row::shared_floats;
use crate::ops::compressed::KEYS;
use crate::ops::experts::ExpertsMemory;
use crate::ops::quantize::QuantizedRows;
use crate::run::{Angles, BufferPtr, MAX_BLOCKS, Place, TensorForm, TensorPtr, Work};
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
    /// Segments that are run together: buffers may have rows for each.
    max_segments: usize,
    /// Whether a carried tensor is rewritten once for each step, so that no segment can be split.
    rewrites: bool,
    carried: Vec<CarriedSpec>,
    forms: Vec<TensorForm>,
    parts: Vec<Part>,
    memory: Vec<Line>,
    buffers: Spans,
    /// Buffers of 8-bit blocks, and what each holds.
    blocks: Vec<QuantizedRows>,
    block_rows: Vec<BlockRows>,
    experts: ExpertsMemory,
    /// Scores of as many compressed rows as any tensor has that rows are chosen of, or parts of one row's attention.
    scores: Vec<f32>,
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
    tensors: Vec<TensorPtr>,
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
        let mut first_tensor = 0;
        for (typed, bound) in chain.parts.iter().zip(chain.bind(weights)?) {
            let key = typed.canonical();
            let program = match lowered.get(&key) {
                Some(program) => program.clone(),
                None => lowered.entry(key).or_insert(Arc::new(lower(typed)?)).clone(),
            };
            let weights = bind::weights(typed, &program, &bound)?;
            let ropes = bind::ropes(&program, &weights, &mut tables);
            let blocks = bind::blocks(&program, &mut blocks);
            let tensors = program.tensors;
            parts.push(Part { lowered: program, weights, ropes, blocks, first_tensor });
            first_tensor += tensors;
        }
        if blocks.len() > MAX_BLOCKS {
            let why =
                format!("its widths need {} buffers of blocks, and there are {MAX_BLOCKS}", blocks.len());
            return Err(BackendError::Unsupported { backend: "cpu".into(), op: "cast".into(), why });
        }
        let (buffers, memory, max_segments) = memory_for(&parts, chain.max_rows)?;
        let carried = chain.carried();
        let form = |c: &CarriedSpec| TensorForm { dtype: c.dtype, rows: c.rows, cols: c.cols };
        let forms: Vec<TensorForm> = carried.iter().map(form).collect();
        let mut experts = ExpertsMemory::new(chain.max_rows);
        parts.iter().flat_map(|part| &part.lowered.experts).for_each(|sizes| experts.add(sizes));
        let scores =
            vec![0.0; chosen_of(&parts, &forms).next_multiple_of(KEYS).max(parts_of(&parts, &forms))];
        let rewrites = parts.iter().any(|part: &Part| part.lowered.rewrites);
        let angles =
            tables.iter().map(|t: &RopeTable| Angles { pairs: t.pairs(), ..Angles::default() }).collect();
        Ok(CpuStep {
            cpu,
            carried,
            forms,
            parts,
            limits: chain.limits(),
            max_rows: chain.max_rows,
            max_segments,
            rewrites,
            memory,
            buffers,
            blocks: blocks.iter().map(|_| QuantizedRows::new()).collect(),
            block_rows: blocks,
            experts,
            scores,
            tables,
            angles,
            places: Vec::new(),
            selected: Vec::new(),
            pointers: Pointers::default(),
        })
    }
}

/// The most compressed rows that any call chooses of.
fn chosen_of(parts: &[Part], forms: &[TensorForm]) -> usize {
    let of_part = |part: &Part| {
        let rows = part.lowered.calls.iter().map(|scheduled| match &scheduled.call {
            Call::Choose { rows: Past::Kept(tensor), .. } => forms[part.first_tensor + tensor.0].rows,
            _ => 0,
        });
        rows.max().unwrap_or(0)
    };
    parts.iter().map(of_part).max().unwrap_or(0)
}

/// The floats that one row's attention needs at most, to be shared by threads.
fn parts_of(parts: &[Part], forms: &[TensorForm]) -> usize {
    let of_part = |part: &Part| {
        let floats = part.lowered.calls.iter().map(|scheduled| {
            let Call::Attend(call) = &scheduled.call else { return 0 };
            let form = |past: &Past| match past {
                Past::Kept(tensor) | Past::Joined { ring: tensor, .. } => {
                    Some(forms[part.first_tensor + tensor.0])
                }
                Past::Window(_) => None,
            };
            let (Some(keys), Some(values)) =
                (form(&call.keys), form(call.values.as_ref().unwrap_or(&call.keys)))
            else {
                return 0;
            };
            shared_floats(call.heads, values.cols / call.kv_heads, keys.rows)
        });
        floats.max().unwrap_or(0)
    };
    parts.iter().map(of_part).max().unwrap_or(0)
}

/// Whether the last part can be run on the wanted rows alone, straight into the caller's rows. A chain of one part
/// runs on all rows: its input is all there is to select from, and may be tokens.
fn selects(parts: &[Part]) -> bool {
    let [_, .., last] = parts else { return false };
    let lowered = &last.lowered;
    let result = lowered.result;
    let room = Room { step: result.width, fixed: 0 };
    lowered.row_wise && result.buffer != 0 && lowered.buffers[result.buffer] == room
}

/// Where each buffer starts, and its size, in lines.
type Spans = Vec<(usize, usize)>;

/// Places all buffers, each with as much room as the most of any program, in one piece of memory; and says how many
/// segments there is room for at once.
fn memory_for(parts: &[Part], rows: usize) -> Result<(Spans, Vec<Line>, usize), BackendError> {
    let none =
        || BackendError::Device { backend: "cpu".into(), what: "no memory for the step's buffers".into() };
    let mut rooms: Vec<Room> = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let elsewhere = (i + 1 == parts.len() && selects(parts)).then_some(part.lowered.result.buffer);
        for (buffer, room) in part.lowered.buffers.iter().enumerate() {
            rooms.resize(rooms.len().max(buffer + 1), Room::default());
            if elsewhere != Some(buffer) {
                rooms[buffer] = rooms[buffer].max(*room);
            }
        }
        // A result in another buffer is copied to buffer 0, for the next part or the caller.
        if elsewhere.is_none() {
            rooms[0] = rooms[0].max(Room { step: part.lowered.result.width, fixed: 0 });
        }
    }
    // As many segments as take no more room than the rows do, where segments take any; one at the least.
    let sum = |of: fn(&Room) -> usize| rooms.iter().map(of).fold(0usize, usize::saturating_add);
    let (step, fixed) = (sum(|r| r.step).saturating_mul(rows), sum(|r| r.fixed));
    let segments = step.checked_div(fixed).map_or(rows, |fit| fit.clamp(1, rows));
    let (mut buffers, mut lines) = (Vec::new(), 0usize);
    for room in rooms {
        let step = room.step.checked_mul(rows).ok_or_else(none)?;
        let fixed = room.fixed.checked_mul(segments).ok_or_else(none)?;
        let own = step.checked_add(fixed).ok_or_else(none)?.div_ceil(LINE);
        buffers.push((lines, own));
        lines = lines.checked_add(own).ok_or_else(none)?;
    }
    // Asked for on trial first: `vec!` ends the process when there is no memory.
    Vec::<Line>::new().try_reserve_exact(lines).map_err(|_| none())?;
    Ok((buffers, vec![Line([0.0; LINE]); lines], segments))
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
        if let Some(long) = batch.iter().find(|s| self.rewrites && s.rows > self.max_rows) {
            let what = format!(
                "{} rows of a segment cannot be split, for a tensor is rewritten once for each step: wanted at most {}",
                long.rows, self.max_rows
            );
            return Err(BackendError::Batch(what));
        }
        // Rows are run together up to the number that buffers are made for; a long segment is split.
        let (mut segment, mut done, mut first) = (0, 0, 0);
        while segment < batch.len() {
            self.places.clear();
            self.selected.clear();
            self.pointers.tensors.clear();
            let mut rows = 0;
            while segment < batch.len() && rows < self.max_rows && self.places.len() < self.max_segments {
                let Segment { state, position, rows: all, outputs } = &mut batch[segment];
                if self.rewrites && *all > self.max_rows - rows {
                    break;
                }
                let taken = (*all - done).min(self.max_rows - rows);
                self.places.push(Place { first: rows, rows: taken, position: *position + done });
                let wanted = outputs.first(*all).max(done)..done + taken;
                self.selected.extend(wanted.map(|row| rows + row - done));
                if let Some(state) = state.as_any().downcast_mut::<RowState>() {
                    let starts = (0..self.carried.len()).map(|t| TensorPtr(state.buffer_mut(t).as_mut_ptr()));
                    self.pointers.tensors.extend(starts);
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
        let tokens = input.tokens().and_then(|all| all.get(first..first + rows)).unwrap_or_default();
        if let (Some(all), Some(width)) = (input.rows(), self.limits.width_in) {
            self.buffer_mut(rows * width).copy_from_slice(&all[first * width..(first + rows) * width]);
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
        for (held, blocks) in self.block_rows.iter().zip(&mut self.blocks) {
            let own = if held.form.step { rows } else { 0 };
            let rows = (held.form.fixed * self.places.len() + own) * held.times;
            if blocks.rows() != rows || blocks.width() != held.width {
                blocks.reshape(rows, held.width);
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
            tensors: &self.pointers.tensors,
            forms: &self.forms,
            experts: self.experts.room(),
            scores: Out::new(&mut self.scores),
        };
        self.cpu.pool().run(|share| parts.iter().for_each(|part| work.part(part, share)));
    }
}
