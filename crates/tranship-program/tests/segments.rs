//! Where carried tensors may be cut: each kind of operation, alone and with others that do not agree with it.

use tranship_program::{Program, Run};

/// Holds what the carried tensors of a layer are found to be cut at to a line for each, in the order of first touch: the
/// axis, and its runs as count × size; or `whole`.
fn check(text: &str, wanted: &[&str]) {
    let mut text = format!("program decode ctx=16\n  x : [n, 8]\n  pos : index\n{text}\n");
    // What a case has no use for is not declared there.
    for (decl, used) in [("  pos : index\n", "pos"), ("  wo : [8, 24] @ \"o\"", "wo")] {
        if text.matches(used).count() == 1 {
            text = text.replace(decl, "");
        }
    }
    let graph = Program::parse(&text).and_then(|p| p.lift()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let segments = graph.segments();
    let cut = |c: &tranship_program::Carried| match segments.get(&c.value) {
        None => format!("{} whole", c.name),
        Some(found) => {
            let runs: Vec<String> =
                found.runs.iter().map(|Run { count, size }| format!("{count}×{size}")).collect();
            let size: u64 = found.runs.iter().map(|run| run.count * run.size).sum();
            assert_eq!(size, c.axes[found.axis].1, "{} in\n{text}", c.name);
            assert!(found.most() > 1, "{} in\n{text}", c.name);
            format!("{} {} {}", c.name, c.axes[found.axis].0, runs.join(" "))
        }
    };
    let found: Vec<String> = graph.roles().carried().map(cut).collect();
    assert_eq!(found, wanted, "in\n{text}");
}

/// Attention over a cache of `heads` heads of 4 elements, of which something is read beside.
fn cached(heads: u64, write: &str, more: &str) -> String {
    let width = heads * 4;
    format!(
        "  k : [position 16, kv_head {heads}, dim 4]  v : [position 16, kv_head {heads}, dim 2]
  wq : [48, 8] @ \"q\"  wk : [{width}, 8] @ \"k\"  wv : [{}, 8] @ \"v\"  wo : [8, 24] @ \"o\"
  p = linear(x, wk)
  k[pos .. pos+n] = {write}
  v[pos .. pos+n] = linear(x, wv)
  a = attend(linear(x, wq), k[.. pos+n], v[.. pos+n], heads: 12, kv_heads: {heads}, scale: 1)
{more}",
        heads * 2
    )
}

#[test]
fn caches_are_cut_between_key_heads() {
    let out = "  return x + linear(a, wo)";
    for heads in [2, 3, 4, 6, 12] {
        let lines = [format!("k kv_head {heads}×1"), format!("v kv_head {heads}×1")];
        check(&cached(heads, "p", out), &lines.each_ref().map(String::as_str));
    }
    check(&cached(1, "p", out), &["k whole", "v whole"]);
    // What is done before a row is written, and what comes after attention, is not what a cut is about.
    check(&cached(4, "rms_norm(p, eps: 0)", out), &["k kv_head 4×1", "v kv_head 4×1"]);
    check(
        &cached(4, "p", "  return x + linear(rms_norm(a, eps: 0), wo)"),
        &["k kv_head 4×1", "v kv_head 4×1"],
    );
}

/// Readers of one cache that see other heads in it: what both can be dealt out by.
#[test]
fn readers_agree_or_a_cache_is_whole() {
    let second = |kv_heads: u64, heads: u64, k: &str| {
        let more = format!(
            "  w2 : [{}, 8] @ \"q2\"
  b = attend(linear(x, w2), {k}, v[.. pos+n], heads: {heads}, kv_heads: {kv_heads}, scale: 1)
  wb : [8, {}] @ \"b\"
  return x + linear(a, wo) + linear(b, wb)",
            48 / kv_heads * heads,
            24 / kv_heads * heads,
        );
        // Declarations first.
        let (decls, lines): (Vec<&str>, Vec<&str>) = more.lines().partition(|line| line.contains(" : "));
        let text = cached(12, "p", &lines.join("\n"));
        let at = text.find("  p = ").expect("it is there");
        format!("{}{}\n{}", &text[..at], decls.join("\n"), &text[at..])
    };
    let k = "k[.. pos+n]";
    check(&second(4, 4, k), &["k kv_head 4×3", "v kv_head 4×3"]);
    check(&second(3, 6, k), &["k kv_head 3×4", "v kv_head 3×4"]);
    check(&second(1, 2, k), &["k whole", "v whole"]);
    // All columns of the cached rows are mixed: the sum would be over rows of earlier positions.
    let mixed = "  u : [48, 48] @ \"u\"";
    let text = second(4, 4, "linear(k[.. pos+n], u)").replace("  w2 :", &format!("{mixed}\n  w2 :"));
    check(&text, &["k whole", "v kv_head 4×3"]);
    check(&second(4, 4, "rms_norm(k[.. pos+n], eps: 0)"), &["k whole", "v kv_head 4×3"]);
    check(&second(4, 4, "rms_norm(k[.. pos+n], eps: 0, heads: 6)"), &["k kv_head 2×6", "v kv_head 4×3"]);
    check(&second(4, 4, "rms_norm(k[.. pos+n], eps: 0, heads: 24)"), &["k kv_head 4×3", "v kv_head 4×3"]);
}

/// A convolution's ring of `axes` (24 channels), of whose result something is made.
fn ring(axes: &str, decls: &str, lines: &str) -> String {
    format!(
        "  r : [position 3, {axes}]  t : [24, 4] @ \"t\"  wx : [24, 8] @ \"x\"  wo : [8, 24] @ \"o\"
{decls}
  new = linear(x, wx)
  c = silu(conv(join(r[pos-3 .. pos], new), t))
  r[pos+n-3 .. pos+n] = new
{lines}"
    )
}

#[test]
fn a_convolution_is_cut_as_its_channels_are_used() {
    let plain = "  return x + linear(c, wo)";
    check(&ring("channel 24", "", plain), &["r channel 24×1"]);
    check(&ring("head 6, dim 4", "", plain), &["r head 6×1"]);
    check(&ring("one 1, channel 24", "", plain), &["r channel 24×1"]);
    let gate = "  wg : [24, 8] @ \"g\"\n  wh : [4, 8] @ \"h\"";
    let gated = "  return x + linear(linear(x, wg) * (c * linear(x, wh)), wo)";
    check(&ring("channel 24", gate, gated), &["r channel 24×1"]);
    let normed = |heads: u64| format!("  return x + linear(rms_norm(c, eps: 0, heads: {heads}), wo)");
    check(&ring("channel 24", "", &normed(8)), &["r channel 8×3"]);
    check(&ring("head 6, dim 4", "", &normed(8)), &["r head 2×3"]);
    check(&ring("channel 24", "", &normed(1)), &["r whole"]);
    check(&ring("channel 24", "", "  return x + linear(l2_norm(c, eps: 0), wo)"), &["r whole"]);
    // A number for each of 24 parts of a row of 96.
    let wide = "  w96 : [96, 8] @ \"96\"  w8 : [8, 96] @ \"8\"";
    let gates =
        |heads: u64| format!("  return x + linear(rms_norm(linear(x, w96) * c, eps: 0, heads: {heads}), w8)");
    check(&ring("channel 24", wide, &gates(96)), &["r channel 24×1"]);
    check(&ring("channel 24", wide, &gates(16)), &["r channel 8×3"]);
    check(&ring("channel 24", wide, &gates(1)), &["r whole"]);
    // What a layer returns has all its columns.
    check(
        &ring("channel 24", "  w8 : [8, 8] @ \"8\"", "  return linear(x, w8) + slice(c, to: 8)"),
        &["r whole"],
    );
    check(
        &ring(
            "channel 24",
            "  e : [3, 24] @ \"e\"  u : [3, 5, 24] @ \"u\"  d : [3, 8, 5] @ \"d\"",
            "  return x + experts(c, route(c, e, top_k: 1), u, d, top_k: 1, act: relu2)",
        ),
        &["r whole"],
    );
}

/// Queries, keys and values of the gated delta rule out of one convolution, one after the other.
#[test]
fn a_convolution_of_queries_keys_and_values() {
    let decls = |heads: u64| {
        format!(
            "  s : [head {heads}, key 2, value 4]  wg : [{heads}, 8] @ \"g\"  w16 : [8, {}] @ \"16\"",
            heads * 4
        )
    };
    let delta = |q: &str, heads: u64, key_heads: u64| {
        format!(
            "  g = linear(x, wg)
  y, s[..] = gated_delta(s[..], {q}, slice(c, heads: 1, from: 4, to: 8), slice(c, from: 8, to: 24), g, sigmoid(g), heads: {heads}, key_heads: {key_heads}, scale: 1)
  return x + linear(rms_norm(y, eps: 0), w16)"
        )
    };
    let q = "slice(c, to: 4)";
    check(&ring("channel 24", &decls(4), &delta(q, 4, 2)), &["r channel 2×2 2×2 4×4", "s head 4×1"]);
    let unit = "l2_norm(slice(c, to: 4), heads: 2, eps: 0)";
    check(&ring("channel 24", &decls(4), &delta(unit, 4, 2)), &["r channel 2×2 2×2 4×4", "s head 4×1"]);
    // A norm over all query heads, before they are heads.
    let whole = "l2_norm(slice(c, to: 4), eps: 0)";
    check(&ring("channel 24", &decls(4), &delta(whole, 4, 2)), &["r whole", "s head 4×1"]);
    // Units of four channels, that a run of two heads of two does not consist of.
    check(&ring("head 6, dim 4", &decls(4), &delta(q, 4, 2)), &["r whole", "s head 4×1"]);
    // Columns that nothing reads go with what they are next to, or alone.
    let unread = delta("linear(x, wk)", 4, 2);
    let decls = format!("{}  wk : [4, 8] @ \"k\"", decls(4));
    check(&ring("channel 24", &decls, &unread), &["r channel 4×1 2×2 4×4", "s head 4×1"]);
}

#[test]
fn memories_are_cut_between_heads() {
    let delta = |key_heads: u64, q: &str, k: &str, decay: u64| {
        let width = key_heads * 2;
        format!(
            "  s : [head 4, key 2, value 3]  wq : [{width}, 8] @ \"q\"  wv : [12, 8] @ \"v\"  wg : [{decay}, 8] @ \"g\"
  wb : [4, 8] @ \"b\"  a : [4] @ \"a\"  bias : [{decay}] @ \"bias\"  wo : [8, 12] @ \"o\"
  c0 : [position 3, channel {width}]  t : [{width}, 4] @ \"t\"
  new = linear(x, wq)
  q = silu(conv(join(c0[pos-3 .. pos], new), t))
  c0[pos+n-3 .. pos+n] = new
  g = log_decay(linear(x, wg), a, bias)
  y, s[..] = gated_delta(s[..], {q}, {k}, linear(x, wv), g, linear(x, wb), heads: 4, key_heads: {}, scale: 1)
  return x + linear(y, wo)",
            if q.contains("tile") { 4 } else { key_heads }
        )
    };
    check(&delta(4, "q", "q", 4), &["c0 channel 4×2", "s head 4×1"]);
    check(&delta(4, "q", "q", 8), &["c0 channel 4×2", "s head 4×1"]);
    check(&delta(2, "q", "q", 4), &["c0 channel 2×2", "s head 4×1"]);
    check(&delta(1, "q", "q", 4), &["c0 whole", "s head 4×1"]);
    // Value head `h` of key head `h mod 2`: the heads of a share are of all key heads.
    let tiled = "tile(q, times: 2)";
    check(&delta(2, tiled, tiled, 4), &["c0 whole", "s head 4×1"]);
    check(&delta(4, "tile(q, times: 1)", "q", 4), &["c0 whole", "s head 4×1"]);
    // A memory that is read beside its update is not cut, and neither is what it is made of.
    let beside = delta(4, "q", "q", 4).replace(
        "  return x + linear(y, wo)",
        "  m = linear(s[..], wm)\n  z[..] = m + z[..]\n  return x + linear(y, wo)",
    );
    let beside = beside.replace("  c0 :", "  wm : [5, 6] @ \"m\"  z : [4, 5]\n  c0 :");
    check(&beside, &["c0 whole", "s whole", "z axis1 5×1"]);
}

#[test]
fn other_memories() {
    let decayed = |heads: u64| {
        format!(
            "  s : [head {heads}, key 4, value 4]  w : [24, 8] @ \"w\"  wo : [8, 24] @ \"o\"
  mix = silu(linear(x, w))
  y, s[..] = decayed_linear(s[..], mix, mix, mix, heads: {heads}, rate: 1)
  return x + linear(rms_norm(y, eps: 0), wo)"
        )
    };
    check(&decayed(6), &["s head 6×1"]);
    check(
        &decayed(6)
            .replace("head 6, key 4, value 4", "head 1, key 24, value 24")
            .replace("heads: 6", "heads: 1"),
        &["s whole"],
    );
    let mamba = |groups: u64| {
        let wide = groups * 2;
        let all = 24 + 2 * wide;
        format!(
            "  r : [position 3, channel {all}]  t : [{all}, 4] @ \"t\"  w : [{all}, 8] @ \"w\"  wd : [6, 8] @ \"d\"
  s : [head 6, dim 4, state 2]  a : [6] @ \"a\"  d : [6] @ \"skip\"  wo : [8, 24] @ \"o\"
  new = linear(x, w)
  c = silu(conv(join(r[pos-3 .. pos], new), t))
  r[pos+n-3 .. pos+n] = new
  y, s[..] = state_space(s[..], slice(c, to: 24), slice(c, from: 24, to: {}), slice(c, from: {}, to: {all}), softplus(linear(x, wd)), a, d, heads: 6, groups: {groups})
  return x + linear(rms_norm(y, eps: 0), wo)",
            24 + wide,
            24 + wide
        )
    };
    check(&mamba(2), &["r channel 6×4 2×2 2×2", "s head 6×1"]);
    check(&mamba(3), &["r channel 6×4 3×2 3×2", "s head 6×1"]);
    // One group for all heads: no two holders could have a share of it, so each has all of the ring.
    check(&mamba(1), &["r whole", "s head 6×1"]);
}

/// Heads that are parts of a wider row, of which others are read elsewhere.
#[test]
fn slices_of_parts() {
    // Of each of four parts of 6: the first 2 columns are a key, the last 4 a value.
    let text = "  s : [head 4, key 2, value 4]  w16 : [8, 16] @ \"16\"
";
    let lines = "  q = slice(c, heads: 4, to: 2)
  y, s[..] = decayed_linear(s[..], q, q, slice(c, heads: 4, from: 2, to: 6), heads: 4, rate: 1)
  return x + linear(y, w16)";
    check(&ring("channel 24", text, lines), &["r channel 4×6", "s head 4×1"]);
    // Eight values to four parts: pairs of heads lie together.
    let text = "  s : [head 8, key 1, value 2]  w16 : [8, 16] @ \"16\"";
    let lines = "  q = slice(c, heads: 8, to: 1)
  y, s[..] = decayed_linear(s[..], q, q, slice(c, heads: 4, from: 2, to: 6), heads: 8, rate: 1)
  return x + linear(y, w16)";
    check(&ring("channel 24", text, lines), &["r channel 4×6", "s head 8×1"]);
}

#[test]
fn rings_and_rotations() {
    let sliding = |heads: u64| {
        let wide = heads * 4;
        format!(
            "  k : [position 5, kv_head {heads}, dim 4]  w : [{wide}, 8] @ \"w\"  wq : [24, 8] @ \"q\"  wo : [8, 24] @ \"o\"
  new = rope(linear(x, w), pos, heads: {heads}, dims: 4, theta: 1e4)
  all = join(k[pos-5 .. pos], new)
  a = attend(linear(x, wq), all, all, heads: 6, kv_heads: {heads}, scale: 1, window: 6)
  k[pos+n-5 .. pos+n] = new
  return x + linear(a, wo)"
        )
    };
    check(&sliding(3), &["k kv_head 3×1"]);
    check(&sliding(1), &["k whole"]);
    // Elements of a head are turned in pairs.
    let turned =
        |heads: u64| format!("  return x + linear(rope(c, pos, heads: {heads}, dims: 4, theta: 1e4), wo)");
    check(&ring("channel 24", "", &turned(3)), &["r channel 3×8"]);
    check(&ring("channel 24", "", &turned(1)), &["r whole"]);
}

/// What is written to a cache is asked for as the cache is, back to where it comes from.
#[test]
fn a_ring_before_a_cache() {
    let cached = |kv_heads: u64, k: &str| {
        let decls =
            format!("  k : [position 16, kv_head {kv_heads}, dim {}]  wq : [24, 8] @ \"q\"", 24 / kv_heads);
        let heads = kv_heads.max(1);
        let lines = format!(
            "  k[pos .. pos+n] = {k}
  a = attend(linear(x, wq), k[.. pos+n], k[.. pos+n], heads: {heads}, kv_heads: {kv_heads}, scale: 1)
  return x + linear(a, wo)"
        );
        ring("channel 24", &decls, &lines)
    };
    check(&cached(6, "c"), &["r channel 6×4", "k kv_head 6×1"]);
    check(&cached(6, "rms_norm(c, eps: 0)"), &["r whole", "k kv_head 6×1"]);
    check(&cached(6, "rms_norm(c, eps: 0, heads: 3)"), &["r channel 3×8", "k kv_head 6×1"]);
    check(&cached(1, "c"), &["r whole", "k whole"]);
    // The sum of a product is exchanged, so what is summed may be cut in another way than what comes of it.
    let decls = "  w24 : [24, 24] @ \"24\"";
    let summed = cached(6, "linear(c, w24)").replace("  k : ", &format!("{decls}\n  k : "));
    check(&summed, &["r channel 24×1", "k kv_head 6×1"]);
}

/// Two rings that meet are cut alike, or one of them not at all.
#[test]
fn rings_that_meet() {
    let two = |lines: &str| {
        let decls = "  r2 : [position 3, channel 24]  t2 : [24, 4] @ \"t2\"  wy : [24, 8] @ \"y\"  s : [head 4, key 2, value 4]
  wg : [4, 8] @ \"g\"  w16 : [8, 16] @ \"16\"";
        let lines = format!(
            "  new2 = linear(x, wy)
  c2 = conv(join(r2[pos-3 .. pos], new2), t2)
  r2[pos+n-3 .. pos+n] = new2
{lines}"
        );
        ring("channel 24", decls, &lines)
    };
    let delta = "  g = linear(x, wg)
  y, s[..] = gated_delta(s[..], slice(c2, to: 4), slice(c2, from: 4, to: 8), slice(c2, from: 8, to: 24), g, g, heads: 4, key_heads: 2, scale: 1)";
    check(
        &two(&format!("{delta}\n  return x + linear(c, wo) + linear(y, w16)")),
        &["r channel 24×1", "r2 channel 2×2 2×2 4×4", "s head 4×1"],
    );
    // Their product's columns are the terms of a sum, of which each holder has those of its own columns: of both.
    check(
        &two(&format!("{delta}\n  return x + linear(c * c2, wo) + linear(y, w16)")),
        &["r channel 24×1", "r2 whole", "s head 4×1"],
    );
}

#[test]
fn rows_that_all_heads_share() {
    let latent =
        "  c : [position 16, latent 6]  r : [position 16, rope 2]  wc : [6, 8] @ \"c\"  wr : [2, 8] @ \"r\"
  wq : [20, 8] @ \"q\"  wkv : [20, 6] @ \"kv\"  wo : [8, 8] @ \"o\"
  c[pos .. pos+n] = linear(x, wc)
  r[pos .. pos+n] = linear(x, wr)
  a = latent_attend(linear(x, wq), c[.. pos+n], r[.. pos+n], wkv, heads: 4, key_dim: 3, scale: 1)
  return x + linear(rms_norm(a, eps: 0, heads: 4), wo)";
    check(
        &latent.replace("linear(rms_norm(a, eps: 0, heads: 4), wo)", "linear(a, wo)"),
        &["c whole", "r whole"],
    );
    check(latent, &["c whole", "r whole"]);
    let compressed = |made: &str| {
        format!(
            "  kv : [position 5, dim 4]  c : [span 4, dim 4]  row : [position 7, width 8]  gate : [position 7, width 8]
  w : [4, 8] @ \"w\"  w8 : [8, 8] @ \"w8\"  wg : [8, 8] @ \"wg\"  bias : [4, 8] @ \"bias\"  wq : [12, 8] @ \"q\"
  wo : [8, 12] @ \"o\"  sinks : [3] @ \"sinks\"
  new = linear(x, w)
  u = linear(x, w8)
  v = linear(x, wg)
  made = compress(join(row[pos-7 .. pos], u), join(gate[pos-7 .. pos], v), bias, rate: 4, overlap: yes)
  c[pos/4 .. (pos+n)/4] = {made}
  row[pos+n-7 .. pos+n] = u
  gate[pos+n-7 .. pos+n] = v
  a = compressed_attend(linear(x, wq), join(kv[pos-5 .. pos], new), c[.. (pos+n)/4], sinks, heads: 3, scale: 1, window: 6, rate: 4)
  kv[pos+n-5 .. pos+n] = new
  return x + linear(a, wo)"
        )
    };
    for made in ["made", "rms_norm(made, eps: 0)"] {
        check(&compressed(made), &["row whole", "gate whole", "c whole", "kv whole"]);
    }
    // Compression itself goes column by column, the two halves of them together.
    let summed = compressed("made")
        .replace("  return x + linear(a, wo)", "  return x + linear(a, wo) + linear(made, w4)");
    let text = summed.replace("  w : ", "  w4 : [8, 4] @ \"w4\"  w : ");
    check(&text, &["row whole", "gate whole", "c whole", "kv whole"]);
    let alone =
        "  row : [position 7, width 8]  w : [8, 8] @ \"w\"  bias : [4, 8] @ \"bias\"  w4 : [8, 4] @ \"w4\"
  u = linear(x, w)
  all = join(row[pos-7 .. pos], u)
  made = compress(all, all, bias, rate: 4, overlap: yes)
  row[pos+n-7 .. pos+n] = u
  return x + linear(made, w4)";
    check(alone, &["row width 4×1 4×1"]);
    let plain =
        alone.replace("overlap: yes", "overlap: no").replace("-7", "-3").replace("position 7", "position 3");
    check(&plain.replace("[8, 4] @ \"w4\"", "[8, 8] @ \"w4\""), &["row width 8×1"]);
}

/// A state that is rewritten as a whole and goes into a product as its matrix.
#[test]
fn a_state_that_is_a_matrix() {
    let text = "  s : [rows 4, cols 8]  w : [8, 4] @ \"w\"
  y = linear(x, s[..])
  s[..] = s[..] + s[..]
  return x + linear(y, w)";
    check(text, &["s whole"]);
}

/// Whatever lifts has segments that are runs of its axes, however little sense there is in it.
#[test]
fn every_accepted_program() {
    let mut found = 0;
    for entry in std::fs::read_dir("tests/accepted").expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("it reads");
        let (text, _) = text.split_once("---\n").expect("a program, and what is expected of it");
        let graph = Program::parse(text).and_then(|p| p.lift()).expect("it is accepted");
        let segments = graph.segments();
        for carried in graph.roles().carried() {
            let Some(cut) = segments.get(&carried.value) else { continue };
            let sum: u64 = cut.runs.iter().map(|run| run.count * run.size).sum();
            assert_eq!(sum, carried.axes[cut.axis].1, "{}: {}", path.display(), carried.name);
            assert!(cut.most() > 1, "{}: {}", path.display(), carried.name);
            found += 1;
        }
    }
    assert!(found >= 10, "{found} tensors that may be cut");
}
