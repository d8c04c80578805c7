use std::fmt::Write as _;
use std::sync::Arc;

use super::*;
use crate::bytes::Source;
use crate::index::Options;

/// The roles of tensors in a safetensors file, by their names, dtypes and shapes.
fn roles_of(tensors: &[(&str, &str, &[u64])]) -> Vec<String> {
    let (mut header, mut end) = (String::new(), 0);
    for (name, dtype, shape) in tensors {
        let itemsize = DType::from_safetensors(dtype).unwrap().itemsize();
        let start = end;
        end += shape.iter().product::<u64>() * itemsize;
        let comma = if header.is_empty() { "" } else { "," };
        // The codes of FP4 are half bytes in the header.
        let shape: Vec<u64> = match *dtype {
            "F4" => [&shape[..shape.len() - 1], &[shape[shape.len() - 1] * 2]].concat(),
            _ => shape.to_vec(),
        };
        write!(
            header,
            "{comma}\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        )
        .unwrap();
    }
    let header = format!("{{{header}}}");
    let data = vec![0; usize::try_from(end).unwrap()];
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    let opened = Opened::from_source(&Source::memory(Arc::new(bytes)), Options::default()).unwrap();
    let name_of = |entry: u32| opened.entry(entry).name.to_string();
    let text = |&(name, ..): &(&str, &str, &[u64])| match opened.role(opened.by_name[name]) {
        Role::Plain => "plain".to_owned(),
        Role::Codes => "codes".to_owned(),
        Role::Companion(owner) => format!("of {}", owner.map_or_else(|| "all".to_owned(), name_of)),
    };
    tensors.iter().map(text).collect()
}

/// Asserts roles: each line is a name, a dtype, a shape and the role.
fn check(lines: &[(&str, &str, &[u64], &str)]) {
    let tensors: Vec<_> = lines.iter().map(|&(name, dtype, shape, _)| (name, dtype, shape)).collect();
    let wanted: Vec<&str> = lines.iter().map(|line| line.3).collect();
    assert_eq!(roles_of(&tensors), wanted, "{tensors:?}");
}

#[test]
fn scales_belong_to_the_fp8_that_they_are_named_after_or_beside() {
    for scale in ["a.weight_scale_inv", "a.weight_scale", "a.scale", "a.qscale_weight"] {
        check(&[
            ("a.weight", "F8_E4M3", &[2, 4], "codes"),
            (scale, "F32", &[1], "of a.weight"),
            ("a.input_scale", "F32", &[], "of a.weight"),
            ("a.bias", "BF16", &[2], "plain"),
            ("a.k_scale", "F32", &[1], "of a.weight"),
            ("norm.weight", "BF16", &[4], "plain"),
            ("attention.k_scale", "F32", &[], "of all"),
        ]);
    }
    check(&[
        ("m.gate_up_proj", "F8_E4M3", &[2, 4, 4], "codes"),
        ("m.gate_up_proj_bias", "BF16", &[2, 4], "plain"),
        ("m.gate_up_proj_scale_inv", "F32", &[2, 1, 1], "of m.gate_up_proj"),
        ("m.down_proj", "F8_E5M2", &[2, 4, 4], "codes"),
        ("m.down_proj_scale", "F32", &[2, 1, 1], "of m.down_proj"),
        ("m.w1_weight", "F8_E4M3", &[4, 4], "codes"),
        ("m.w1_weight_scale", "F8_E8M0", &[1, 1], "of m.w1_weight"),
    ]);
}

#[test]
fn fp8_is_codes_with_other_companions_and_with_none() {
    check(&[
        ("alone.weight", "F8_E4M3", &[2, 4], "codes"),
        ("two.weight", "F8_E4M3", &[2, 4], "codes"),
        ("two.weight_scale", "F32", &[1], "of two.weight"),
        ("two.weight_scale_inv", "F32", &[1], "of two.weight"),
        ("zero.weight", "F8_E4M3", &[2, 4], "codes"),
        ("zero.weight_scale", "F32", &[1], "of zero.weight"),
        ("zero.weight_zero_point", "F8_E4M3", &[1], "of zero.weight"),
        ("other.weight", "F8_E4M3", &[2, 4], "codes"),
        ("other.scale_weight", "F32", &[1], "of other.weight"),
        ("fnuz.weight", "F8_E4M3FNUZ", &[2, 4], "codes"),
        ("fnuz.weight_scale", "F32", &[1], "of fnuz.weight"),
    ]);
}

#[test]
fn one_number_beside_codes_that_have_their_scales_is_of_the_module() {
    check(&[
        ("a.weight", "F8_E4M3", &[2, 4], "codes"),
        ("a.weight_scale", "F32", &[1], "of a.weight"),
        ("a.scale", "F32", &[1], "plain"),
        ("a.zero_offset", "BF16", &[], "plain"),
        // Of these names it may change the formula.
        ("global.weight", "F8_E4M3", &[2, 4], "codes"),
        ("global.weight_scale", "F32", &[1], "of global.weight"),
        ("global.global_scale", "F32", &[1], "of global.weight"),
        ("a.input_scale", "F32", &[1], "of a.weight"),
        // Of this shape it may be the scales of the only block.
        ("block.weight", "F8_E4M3", &[2, 4], "codes"),
        ("block.weight_scale", "F32", &[1], "of block.weight"),
        ("block.scale", "F32", &[1, 1], "of block.weight"),
        ("int8.weight", "I8", &[2, 4], "codes"),
        ("int8.weight_scale", "F32", &[2, 1], "of int8.weight"),
        ("int8.scale", "F32", &[1], "plain"),
        ("undeclared.weight", "F8_E4M3", &[2, 4], "codes"),
        ("undeclared.scale", "F32", &[1], "of undeclared.weight"),
        ("undeclared.zero_point", "F32", &[1], "of undeclared.weight"),
    ]);
}

#[test]
fn packed_integers_and_what_is_beside_them_are_told_by_their_module() {
    check(&[
        ("nv.weight", "U8", &[2, 4], "codes"),
        ("nv.weight_scale", "F8_E4M3", &[2, 1], "of nv.weight"),
        ("nv.weight_scale_2", "F32", &[], "of nv.weight"),
        ("nv.pre_quant_scale", "BF16", &[8], "of nv.weight"),
        ("ct.weight_packed", "I32", &[2, 4], "codes"),
        ("ct.weight_scale", "BF16", &[2, 1], "of ct.weight_packed"),
        ("ct.weight_global_scale", "F32", &[1], "of ct.weight_packed"),
        ("ct.weight_shape", "I64", &[2], "of ct.weight_packed"),
        ("ct.weight_zero_point", "I32", &[1, 1], "of ct.weight_packed"),
        ("ct.weight_g_idx", "I32", &[4], "of ct.weight_packed"),
        ("gptq.qweight", "I32", &[2, 4], "codes"),
        ("gptq.qzeros", "I32", &[1, 1], "of gptq.qweight"),
        ("gptq.scales", "F16", &[1, 4], "of gptq.qweight"),
        ("gptq.g_idx", "I32", &[16], "of gptq.qweight"),
        ("gptq.bias", "F16", &[4], "plain"),
        ("m.gate_blocks", "U8", &[2, 1, 16], "codes"),
        ("m.gate_scales", "U8", &[2, 1], "of m.gate_blocks"),
        ("m.gate_bias", "BF16", &[2], "plain"),
        ("alone.up_blocks", "U8", &[2, 1, 16], "codes"),
        ("images.up_blocks", "U8", &[2, 3, 8], "plain"),
        ("v4.weight", "I8", &[2, 4], "codes"),
        ("v4.scale", "F8_E8M0", &[2, 1], "of v4.weight"),
        ("int8.weight", "I8", &[2, 4], "codes"),
        ("int8.SCB", "F32", &[2], "of int8.weight"),
        ("int8.weight_format", "U8", &[], "of int8.weight"),
        ("mlx.weight", "U32", &[2, 4], "codes"),
        ("mlx.scales", "F16", &[2, 1], "of mlx.weight"),
        ("mlx.biases", "F16", &[2, 1], "of mlx.weight"),
        ("ao._weight_qdata", "I8", &[2, 4], "codes"),
        ("ao._weight_scale", "F32", &[2, 1], "of ao._weight_qdata"),
        ("quanto.weight._data", "I8", &[2, 4], "codes"),
        ("quanto.weight._scale", "F32", &[2, 1], "of quanto.weight._data"),
        ("hqq.W_q", "U8", &[2, 4], "codes"),
        ("hqq.scale", "F16", &[2, 1], "of hqq.W_q"),
        ("hqq.zero", "F16", &[2, 1], "of hqq.W_q"),
        ("aqlm.codes", "I16", &[2, 4, 1], "codes"),
        ("aqlm.codebooks", "F16", &[1, 8], "of aqlm.codes"),
        ("fp4.weight", "F4", &[2, 4], "codes"),
        ("lone.weight", "U8", &[2, 4], "codes"),
        ("logit_scale", "F32", &[], "of all"),
    ]);
}

#[test]
fn what_is_named_below_a_tensor_belongs_to_it() {
    for dtype in ["U8", "BF16"] {
        check(&[
            ("a.weight", dtype, &[8, 1], "codes"),
            ("a.weight.absmax", "F32", &[1], "of a.weight"),
            ("a.weight.nested_quant_map", "F32", &[2, 3], "of a.weight"),
            ("a.weight.quant_map", "F32", &[16], "of a.weight"),
            ("a.weight.quant_state.bitsandbytes__nf4", "U8", &[9], "of a.weight"),
            ("a.bias", "BF16", &[2], "plain"),
        ]);
    }
}

#[test]
fn scales_of_scales_belong_to_scales() {
    check(&[
        ("w", "F8_E4M3", &[1, 1], "codes"),
        ("w_scale_inv", "F8_E4M3", &[1, 1], "of w"),
        ("w_scale_inv_scale_inv", "F8_E4M3", &[1, 1], "of w_scale_inv"),
    ]);
    // Without codes, fp8 numbers that are named as scales are of nothing that is known.
    check(&[("x.weight_scale", "F8_E4M3", &[2, 1], "codes"), ("x.weight", "BF16", &[2, 1], "plain")]);
}

#[test]
fn ordinary_tensors_are_numbers_as_they_are() {
    check(&[
        ("embeddings.position_ids", "I64", &[1, 8], "plain"),
        ("embeddings.token_type_ids", "I32", &[1, 8], "plain"),
        ("bn.num_batches_tracked", "I64", &[], "plain"),
        ("bn.weight", "F32", &[4], "plain"),
        ("attn.bias", "U8", &[1, 1, 4, 4], "plain"),
        ("attn.mask", "BOOL", &[4, 4], "plain"),
        ("attn.relative_position_index", "I64", &[4, 4], "plain"),
        ("attn.logit_scale", "F32", &[1], "plain"),
        ("q_norm.scale", "F32", &[4], "plain"),
        ("conv.weight_scale", "F32", &[4, 1], "plain"),
        ("conv.weight", "BF16", &[4, 4], "plain"),
        ("image", "U8", &[3, 4, 4], "plain"),
        ("scale", "F32", &[], "plain"),
        ("table.values", "I8", &[4, 4], "plain"),
        ("fake.scale", "F32", &[1], "plain"),
        ("fake.zero_point", "I32", &[1], "plain"),
        ("fake.fake_quant_enabled", "U8", &[1], "plain"),
        ("loss.weight", "I64", &[4], "plain"),
        ("exponents", "F8_E8M0", &[4], "plain"),
    ]);
}
