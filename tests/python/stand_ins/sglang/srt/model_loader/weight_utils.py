def maybe_add_mtp_safetensors(hf_weights_files, hf_folder, index_file, hf_config):
    return hf_weights_files
