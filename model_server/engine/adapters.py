"""Which LoRA adapters are loaded, and the place of each among those that the model keeps.

An adapter's id is the router's, and never comes again; a place is the shard's own, and does. So a
sequence keeps the id, and each of its steps looks the place up: where the adapter is gone, the step
is refused, and never computed with another one.
"""

from model_server.errors import AdapterRefused, NoAdapter, OutOfMemory


class AdapterBook:
    """These are numbers alone; the runner is its only mutator."""

    def __init__(self, max_loras: int) -> None:
        self._max_loras = max_loras
        self._places: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Adapters that may still be loaded."""
        return self._max_loras - len(self._places)

    def place_of(self, adapter_id: int) -> int:
        """Raises NoAdapter."""
        place = self._places.get(adapter_id)
        if place is None:
            raise NoAdapter(f"adapter {adapter_id} is not loaded")
        return place

    def require_room(self, adapter_id: int) -> None:
        """Raise what `enter` raises."""
        if not self._max_loras:
            raise AdapterRefused("this shard keeps no memory for adapters: --max-loras is 0")
        if adapter_id not in self._places and not self.num_free:
            raise OutOfMemory(f"--max-loras is {self._max_loras}, and so many adapters are loaded")

    def enter(self, adapter_id: int) -> int:
        """The place of a new adapter, or of one that is loaded anew.

        Raises AdapterRefused where none is served, OutOfMemory where all places are taken.
        """
        self.require_room(adapter_id)
        if adapter_id not in self._places:
            taken = set(self._places.values())
            free = (place for place in range(self._max_loras) if place not in taken)
            self._places[adapter_id] = next(free)
        return self._places[adapter_id]

    def leave(self, adapter_id: int) -> int:
        """Free an adapter's place. Raises NoAdapter."""
        place = self.place_of(adapter_id)
        del self._places[adapter_id]
        return place

    def clear(self) -> list[int]:
        """Free all; returns the places that were taken."""
        places = list(self._places.values())
        self._places.clear()
        return places
