def load_state_dict_guess_config(
    sd,
    output_vae=True,
    output_clip=True,
    output_clipvision=False,
    embedding_directory=None,
    output_model=True,
    model_options=None,
    te_model_options=None,
    metadata=None,
):
    parameters = sum(sd[name].nelement() for name in sd)
    model = {name: sd.pop(name) for name in list(sd) if name.startswith("model.diffusion_model.")}
    vae = {name: sd.pop(name) for name in list(sd) if name.startswith("first_stage_model.")}
    return (model, parameters), sd, vae, None
