class HfCheckpointLoader:
    def __init__(self, *, weight_loader=None, weight_mapper=None, config_loader=None):
        self.weight_loader = weight_loader

    def load_weights(self, checkpoint_dir, mapping, **kwargs):
        return self.weight_loader.load_weights(checkpoint_dir, mapping=mapping, **kwargs)
