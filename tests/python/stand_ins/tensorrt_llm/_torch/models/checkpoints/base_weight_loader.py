from abc import ABC, abstractmethod


class BaseWeightLoader(ABC):
    @abstractmethod
    def load_weights(self, checkpoint_dir, mapping, **kwargs): ...
